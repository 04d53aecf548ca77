//! `check-tree strings [N [COMMIT]]`: the strings that users of crisp read. With N, draws that many of them for a
//! reading test: each of them must be understood alone.

mod clap_help;
mod draw;
mod errors;
mod logs;
mod metrics;
mod settings;
#[cfg(test)]
mod tests;
mod tokens;

use std::fmt;
use std::fs;
use std::path::Path;

use crate::git;
use crate::rust_source::RustSource;
use tokens::Tokens;

const SETTINGS: &str = "runtime-config/crisp.toml";

/// A string and where it is, as a user reads it, with `{}` around the parts that vary.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UserString {
    path: String,
    line: usize,
    text: String,
}

impl fmt::Display for UserString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.text)
    }
}

/// Returns what the command prints. `arguments` follow the word `strings`.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<String, String> {
    let strings = list(root)?;
    let lines: Vec<String> = match arguments {
        [] => strings.iter().map(UserString::to_string).collect(),
        [count, commit @ ..] if commit.len() < 2 => {
            let count = count.parse().map_err(|error| format!("invalid number of strings {count:?}: {error}"))?;
            let commit = commit.first().map_or("HEAD", String::as_str);
            let hash = git(root, &["rev-parse", "--verify", &format!("{commit}^{{commit}}")])?;
            let drawn = draw::draw(&strings, count, hash.trim());
            drawn.iter().enumerate().map(|(number, string)| format!("{}. {}", number + 1, string.text)).collect()
        }
        _ => return Err("expected: strings [N [COMMIT]]".to_owned()),
    };
    Ok(lines.join("\n"))
}

/// Returns all strings of the files that git tracks, sorted by file and line.
fn list(root: &Path) -> Result<Vec<UserString>, String> {
    let listed = git(root, &["ls-files", "-z", "src", SETTINGS])?;
    let mut strings = Vec::new();
    for path in listed.split('\0').filter(|path| !is_test(path)) {
        let Ok(content) = fs::read_to_string(root.join(path)) else { continue };
        let found = match path {
            SETTINGS => settings::find(&content),
            _ if path.ends_with(".rs") => find(path, &content),
            _ => Vec::new(),
        };
        strings.extend(found.into_iter().map(|(line, text)| {
            // One line each, also if the text has several.
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            UserString { path: path.to_owned(), line, text }
        }));
    }
    strings.sort();
    Ok(strings)
}

/// Returns the strings of a Rust source, with their lines.
fn find(path: &str, content: &str) -> Vec<(usize, String)> {
    let source = RustSource::parse(content);
    let tokens = Tokens::without_tests(&source.tokens);
    let mut found = errors::find(tokens.all());
    found.extend(logs::find(tokens.all(), &module(path)));
    found.extend(clap_help::find(tokens.all(), &command(path)));
    found.extend(metrics::find(tokens.all()));
    found
}

fn is_test(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    let is_folder = path.split('/').any(|folder| matches!(folder, "tests" | "suite"));
    is_folder || file == "tests.rs" || file.ends_with("_tests.rs") || file == "test_support.rs"
}

/// Returns the module of a source, which is in each line of the log: `daemon::grpc` for `src/daemon/grpc/mod.rs`.
fn module(path: &str) -> String {
    let path = path.strip_prefix("src/").unwrap_or(path);
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "mod" | "lib")).collect();
    parts.join("::")
}

/// Returns the command whose help a source has, such as `crisp image` for `src/cli/image/mod.rs`.
fn command(path: &str) -> String {
    let path = path.strip_prefix("src/").unwrap_or(path);
    let path = path.strip_prefix("cli/").unwrap_or(path);
    let first = path.split('/').next().unwrap_or(path);
    match first.strip_suffix(".rs").unwrap_or(first) {
        "crisp" => "crisp".to_owned(),
        "common_args" => "crisp serve".to_owned(),
        name => format!("crisp {name}"),
    }
}
