//! Error texts: `#[error("...")]` of thiserror.

use super::tokens::{group_length, item_length, source, split, starts_with, string};
use crate::rust_source::Token;

pub(super) fn find(tokens: &[&Token]) -> Vec<(usize, String)> {
    let attributes = (0..tokens.len()).filter(|at| starts_with(&tokens[*at..], &["#", "[", "error", "("]));
    attributes.filter_map(|at| error(&tokens[at..])).collect()
}

/// Returns the text of an error, and `{cause}` after it if it has a source, as a user reads the chain.
fn error(tokens: &[&Token]) -> Option<(usize, String)> {
    let end = 3 + group_length(&tokens[3..]);
    let arguments = split(&tokens[4..end - 1]);
    let (text, values) = arguments.split_first()?;
    let mut text = string(text.first()?)?;
    for value in values {
        text = text.replacen("{}", &format!("{{{}}}", plain(&source(value))), 1);
    }
    let variant = &tokens[end + 1..];
    let variant = &variant[..item_length(variant)];
    let is_link = (0..variant.len()).any(|at| {
        let rest = &variant[at..];
        [&["#", "[", "source"][..], &["#", "[", "from"], &["source", ":"]].iter().any(|codes| starts_with(rest, codes))
    });
    let cause = if is_link && !text.contains("{source}") { ": {cause}" } else { "" };
    has_words(&text).then(|| (tokens[0].line, format!("error: {text}{cause}")))
}

/// Returns whether a text has words beside its placeholders.
fn has_words(text: &str) -> bool {
    let mut depth = 0_usize;
    text.chars().any(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && c.is_alphabetic()
    })
}

/// Returns the expression without the calls that only format it.
fn plain(expression: &str) -> String {
    expression.trim_end_matches(".display()").trim_start_matches(['.', '&']).to_owned()
}
