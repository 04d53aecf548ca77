//! `check-tree [ROOT]`: checks the rules of CONTRIBUTING.md that concern the whole tree: prose, sizes of files and
//! folders, dependencies between crates and modules, and commit messages. Reads the files that git tracks.
//! `check-tree strings [N [COMMIT]]` prints the strings that users read, or a draw of N of them.
#![forbid(unsafe_code)]

mod commits;
mod crates;
mod modules;
mod prose;
mod rust_source;
mod sizes;
mod strings;
#[cfg(test)]
mod test_limit;
#[cfg(test)]
mod tests;
mod text;

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fmt, fs};

/// Texts without these rules: the CRI protocol, inputs found by the fuzzer, and the words that the rules exclude.
const EXEMPT: [&str; 4] = ["hack/check-tree/prose.rs", "hack/check-tree/tests.rs", "proto/", "tests/fuzz/seeds/"];

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    rule: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: String) -> Self {
        Self { path: path.to_owned(), line, rule }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.rule),
            line => write!(f, "{}:{line}: {}", self.path, self.rule),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Some(("strings", rest)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return match strings::run(Path::new("."), rest) {
            Ok(lines) => print(&lines),
            Err(error) => fail(&error),
        };
    }
    let findings = match check(Path::new(arguments.first().map_or(".", String::as_str))) {
        Ok(findings) => findings,
        Err(error) => return fail(&error),
    };
    for finding in &findings {
        eprintln!("{finding}");
    }
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(lines: &str) -> ExitCode {
    match writeln!(io::stdout(), "{lines}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("printing: {error}")),
    }
}

fn fail(error: &str) -> ExitCode {
    eprintln!("check-tree: {error}");
    ExitCode::FAILURE
}

fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let listed = git(root, &["ls-files", "-z"])?;
    let paths: Vec<&str> = listed.split('\0').filter(|path| !path.is_empty()).collect();
    let mut findings = sizes::check_folders(&paths);
    let mut modules = modules::Modules::default();
    let mut manifests = Vec::new();
    for path in paths {
        // A file that git tracks may be removed in the work tree.
        let Ok(content) = fs::read_to_string(root.join(path)) else { continue };
        if EXEMPT.iter().any(|exempt| path.starts_with(exempt)) {
            continue;
        }
        findings.extend(prose::check(path, &content));
        if path.ends_with(".rs") {
            findings.extend(sizes::check_file(path, &content));
            modules.add(path, &content);
        } else if path.ends_with("Cargo.toml") {
            manifests.push((path.to_owned(), content));
        }
    }
    let members: Vec<_> =
        manifests.iter().filter_map(|(_, manifest)| crates::name(manifest)).map(str::to_owned).collect();
    for (path, manifest) in &manifests {
        findings.extend(crates::check(path, manifest, &members));
    }
    findings.extend(modules.check());
    findings.extend(commits::check(root)?);
    findings.sort();
    Ok(findings)
}

/// Returns what git prints. Fails if its exit status is not 0.
fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output();
    let output = output.map_err(|error| format!("running git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("git {}: {error}", arguments.join(" ")))
}
