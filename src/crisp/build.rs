//! Puts the commit that crisp is built from into the program: `CRISP_COMMIT`, or the one that git has checked out.
//!
//! The commit depends on nothing else, so that two builds of one commit are equal.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CRISP_COMMIT");
    let given = env::var("CRISP_COMMIT").ok().filter(|commit| is_commit(commit));
    let commit = given.or_else(checked_out).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=CRISP_BUILD_COMMIT={commit}");
}

/// Returns the commit of the repository that this workspace is the root of: an archive may be unpacked in another one.
fn checked_out() -> Option<String> {
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("../..").canonicalize().ok()?;
    if Path::new(&git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()? != root {
        return None;
    }
    // It changes with every commit and checkout; without a log of them, HEAD does at least with a checkout.
    let logged = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
    let head = git(&["rev-parse", "--path-format=absolute", "--git-path", "HEAD"])?;
    let watched = if Path::new(&logged).exists() { logged } else { head };
    println!("cargo::rerun-if-changed={watched}");
    git(&["rev-parse", "HEAD"]).filter(|commit| is_commit(commit))
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then_some(())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Returns whether it is a hash, or the beginning of one.
fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
