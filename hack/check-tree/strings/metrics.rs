//! HELP of metrics: of `family("name", kind, help)`, of tables of such, and of the macro `families!`.

use super::tokens::{code, group_length, split, starts_with, string};
use crate::rust_source::Token;

pub(super) fn find(tokens: &[&Token]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut variables = Vec::new();
    for at in 0..tokens.len() {
        let rest = &tokens[at..];
        if let [binding, variable, equals, value, ..] = rest
            && code(binding) == Some("let")
            && code(equals) == Some("=")
            && let (Some(variable), Some(text)) = (code(variable), string(value))
        {
            variables.push((variable, text));
        } else if code(rest[0]) == Some("(") {
            let is_family = at > 0 && code(tokens[at - 1]) == Some("family");
            let group = &rest[1..group_length(rest).saturating_sub(1).max(1)];
            found.extend(family(&split(group), is_family, &variables));
        } else if starts_with(rest, &["families", "!", "{"]) {
            found.extend(macro_families(&rest[3..2 + group_length(&rest[2..])]));
        }
    }
    found
}

/// Returns the help of a call of `family`, or of a row of a table that begins with a name and its help.
fn family(parts: &[&[&Token]], is_family: bool, variables: &[(&str, String)]) -> Option<(usize, String)> {
    let [[name], middle @ ..] = parts else { return None };
    let metric = string(name).filter(|name| is_family || name.starts_with("crisp_"))?;
    let help = middle.get(usize::from(is_family)).and_then(|help| help.first())?;
    let bound =
        || variables.iter().rev().find(|(variable, _)| Some(*variable) == code(help)).map(|(_, text)| text.clone());
    let help = string(help).or_else(bound)?;
    Some((name.line, line(&metric, &help)))
}

/// Returns the help of rows such as `CPU: Counter "name" ["label"] "help";`.
fn macro_families(tokens: &[&Token]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for row in tokens.split(|token| code(token) == Some(";")) {
        let strings: Vec<_> = row.iter().filter_map(|token| string(token)).collect();
        if let ([name, .., help], Some(first)) = (&strings[..], row.first()) {
            found.push((first.line, line(name, help)));
        }
    }
    found
}

fn line(name: &str, help: &str) -> String {
    format!("# HELP {name} {help}")
}
