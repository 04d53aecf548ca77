//! Finds pieces in the tokens of a source.

use crate::rust_source::{Token, TokenKind};

/// The tokens of a source that are not those of its tests.
#[derive(Debug)]
pub(super) struct Tokens<'a>(Vec<&'a Token>);

impl<'a> Tokens<'a> {
    pub(super) fn without_tests(tokens: &'a [Token]) -> Self {
        let all: Vec<&Token> = tokens.iter().collect();
        let mut kept = Vec::new();
        let mut rest = &all[..];
        while let Some(first) = rest.first() {
            if starts_with(rest, &["#", "[", "cfg", "(", "test", ")", "]"]) {
                rest = &rest[item_length(rest)..];
            } else {
                kept.push(*first);
                rest = &rest[1..];
            }
        }
        Self(kept)
    }

    pub(super) fn all(&self) -> &[&'a Token] {
        &self.0
    }
}

pub(super) fn code(token: &Token) -> Option<&str> {
    if let TokenKind::Code(code) = &token.kind { Some(code) } else { None }
}

/// Returns the content of a string, with its escapes resolved.
pub(super) fn string(token: &Token) -> Option<String> {
    let TokenKind::Str(written) = &token.kind else { return None };
    let mut text = String::new();
    let mut chars = written.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('\n')) => while chars.next_if(|c| c.is_whitespace()).is_some() {},
            ('\\', Some('n')) => text.push(' '),
            ('\\', Some(escaped)) => text.push(escaped),
            _ => text.push(c),
        }
    }
    Some(text)
}

pub(super) fn starts_with(tokens: &[&Token], codes: &[&str]) -> bool {
    codes.len() <= tokens.len() && codes.iter().zip(tokens).all(|(expected, token)| code(token) == Some(expected))
}

/// Returns the number of tokens from an opening bracket to the one that closes it.
pub(super) fn group_length(tokens: &[&Token]) -> usize {
    let mut depth = 0_usize;
    for (position, token) in tokens.iter().enumerate() {
        match code(token) {
            Some("(" | "[" | "{") => depth += 1,
            Some(")" | "]" | "}") => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return position + 1;
        }
    }
    tokens.len()
}

/// Returns the number of tokens of an item, variant or field with its attributes: up to a `,` or `;`, or up to the
/// end of its braces.
pub(super) fn item_length(tokens: &[&Token]) -> usize {
    let mut position = 0;
    while let Some(token) = tokens.get(position) {
        match code(token) {
            Some(")" | "]" | "}") => return position,
            Some("," | ";") => return position + 1,
            Some("{") => return position + group_length(&tokens[position..]),
            Some("(" | "[") => position += group_length(&tokens[position..]),
            _ => position += 1,
        }
    }
    position
}

/// Splits the content of a group at its commas.
pub(super) fn split<'t, 'a>(mut tokens: &'t [&'a Token]) -> Vec<&'t [&'a Token]> {
    let mut parts = Vec::new();
    let mut length = 0;
    while length < tokens.len() {
        if code(tokens[length]) == Some(",") {
            parts.push(&tokens[..length]);
            tokens = &tokens[length + 1..];
            length = 0;
        } else {
            length += group_length(&tokens[length..]).max(1);
        }
    }
    if !tokens.is_empty() {
        parts.push(tokens);
    }
    parts
}

/// Returns the code of an expression as one text.
pub(super) fn source(tokens: &[&Token]) -> String {
    tokens
        .iter()
        .map(|token| match &token.kind {
            TokenKind::Code(code) => code.clone(),
            TokenKind::Str(text) => format!("{text:?}"),
            TokenKind::Doc(_) => String::new(),
        })
        .collect()
}
