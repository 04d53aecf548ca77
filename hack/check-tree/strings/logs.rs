//! Messages of the log: `tracing::warn!(field, "...")`.

use super::tokens::{code, group_length, source, split, string};
use crate::rust_source::Token;

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Returns the lines as the daemon prints them in the format `text`, without time and request.
pub(super) fn find(tokens: &[&Token], module: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, triple) in tokens.windows(3).enumerate() {
        let [name, exclamation, open] = triple else { continue };
        let level = code(name).filter(|name| LEVELS.contains(name));
        let is_call = code(exclamation) == Some("!") && code(open) == Some("(");
        if let (Some(level), true) = (level, is_call) {
            let group = &tokens[at + 2..];
            let inside = &group[1..group_length(group).saturating_sub(1).max(1)];
            if let Some(text) = message(inside) {
                found.push((name.line, format!("{} {module}: {text}", level.to_uppercase())));
            }
        }
    }
    found
}

/// Returns the message, then the names of its fields.
fn message(arguments: &[&Token]) -> Option<String> {
    let parts = split(arguments);
    let at = parts.iter().position(|part| part.first().is_some_and(|first| string(first).is_some()))?;
    let mut text = string(parts[at][0])?;
    for part in &parts[..at] {
        let name = source(part);
        let name = name.split('=').next().unwrap_or_default().trim_start_matches(['%', '?']);
        if !name.contains(':') {
            text.push_str(&format!(" {name}={{}}"));
        }
    }
    Some(text)
}
