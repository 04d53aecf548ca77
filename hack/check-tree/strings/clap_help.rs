//! Help of commands: doc comments of clap's types, and texts in `#[command]` and `#[arg]`.

use super::tokens::{code, group_length, item_length, starts_with, string};
use crate::rust_source::{Token, TokenKind};

const DERIVES: [&str; 4] = ["Parser", "Args", "Subcommand", "ValueEnum"];
const KEYS: [&str; 6] = ["help", "long_help", "about", "long_about", "after_help", "after_long_help"];

pub(super) fn find(tokens: &[&Token], command: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        // Attributes and doc comments belong to the item that follows them.
        let item = &tokens[at..];
        if is_attribute(item) || matches!(item[0].kind, TokenKind::Doc(_)) {
            let length = attributes_length(item);
            if is_clap(&item[..length]) {
                let body = length + item[length..].iter().position(|token| code(token) == Some("{")).unwrap_or(0);
                let end = body + group_length(&item[body..]);
                // clap shows the comment of the whole program; a subcommand is described by its variant.
                let is_program = item[..length].iter().any(|token| code(token) == Some("Parser"));
                let shown = item[..body].iter().filter(|token| is_program || !matches!(token.kind, TokenKind::Doc(_)));
                found.extend(texts(&shown.copied().collect::<Vec<_>>(), command));
                members(&item[body..end], command, &mut found);
                at += end;
                continue;
            }
            at += length;
        } else {
            at += 1;
        }
    }
    found
}

/// Finds the texts of the fields or variants in braces.
fn members(braces: &[&Token], command: &str, found: &mut Vec<(usize, String)>) {
    let mut rest = &braces[1..braces.len().saturating_sub(1).max(1)];
    while !rest.is_empty() {
        let (member, after) = rest.split_at(member_length(rest).clamp(1, rest.len()));
        found.extend(texts(member, command));
        let name = attributes_length(member);
        if member.get(name + 1).is_some_and(|token| code(token) == Some("{")) {
            let fields = &member[name + 1..];
            let command = format!("{command} {}", option_name(&member[name..]));
            members(&fields[..group_length(fields)], &command, found);
        }
        rest = after;
    }
}

fn is_attribute(tokens: &[&Token]) -> bool {
    starts_with(tokens, &["#", "["])
}

/// Returns the number of tokens of the attributes and doc comments at the start.
fn attributes_length(tokens: &[&Token]) -> usize {
    let mut at = 0;
    while at < tokens.len() {
        if is_attribute(&tokens[at..]) {
            at += 1 + group_length(&tokens[at + 1..]);
        } else if matches!(tokens[at].kind, TokenKind::Doc(_)) {
            at += 1;
        } else {
            break;
        }
    }
    at
}

fn member_length(tokens: &[&Token]) -> usize {
    let attributes = attributes_length(tokens);
    let length = attributes + item_length(&tokens[attributes..]);
    // A variant with braces has its comma after them.
    length + usize::from(tokens.get(length).is_some_and(|token| code(token) == Some(",")))
}

fn is_clap(attributes: &[&Token]) -> bool {
    let derive = attributes.iter().position(|token| code(token) == Some("derive"));
    derive.is_some_and(|at| {
        let list = &attributes[at + 1..];
        list[..group_length(list)].iter().any(|token| code(token).is_some_and(|name| DERIVES.contains(&name)))
    })
}

/// Returns the texts of an item or member, each after the command and the name of the option.
fn texts(tokens: &[&Token], command: &str) -> Vec<(usize, String)> {
    let attributes = &tokens[..attributes_length(tokens)];
    let name = name(attributes, &tokens[attributes.len()..]);
    let mut found = Vec::new();
    let docs: Vec<_> = attributes.iter().filter(|token| matches!(token.kind, TokenKind::Doc(_))).collect();
    let lines =
        docs.iter().filter_map(|token| if let TokenKind::Doc(line) = &token.kind { Some(line.trim()) } else { None });
    let text = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    if let (Some(first), false) = (docs.first(), text.is_empty()) {
        found.push((first.line, text));
    }
    for (at, triple) in attributes.windows(3).enumerate() {
        if code(triple[0]).is_some_and(|key| KEYS.contains(&key)) && code(triple[1]) == Some("=") {
            found.extend(string(triple[2]).map(|text| (attributes[at].line, text)));
        }
    }
    found.into_iter().map(|(line, text)| (line, format!("{command} --help: {name}{text}"))).collect()
}

/// Returns the name of an option or value; empty for a whole command.
fn name(attributes: &[&Token], item: &[&Token]) -> String {
    let words: Vec<&str> = item.iter().filter_map(|token| code(token)).collect();
    if words.iter().any(|word| matches!(*word, "struct" | "enum")) {
        return String::new();
    }
    let is_option = attributes.iter().any(|token| code(token) == Some("long"));
    format!("{}{}: ", if is_option { "--" } else { "" }, option_name(item))
}

/// Returns the name that clap derives from a field or variant: `log-level` for `log_level` and `LogLevel`.
fn option_name(item: &[&Token]) -> String {
    let mut words = item.iter().filter_map(|token| code(token));
    let word = words.find(|word| !matches!(*word, "pub" | "(" | ")" | "super" | "crate")).unwrap_or_default();
    let mut name = String::new();
    for c in word.chars() {
        match c {
            '_' => name.push('-'),
            _ if c.is_uppercase() && !name.is_empty() => name.extend(['-'].into_iter().chain(c.to_lowercase())),
            _ => name.extend(c.to_lowercase()),
        }
    }
    name
}
