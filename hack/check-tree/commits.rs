//! Commit messages since the last tag; without a tag, since the commit that added this file.

use std::path::Path;

use crate::{Finding, git};

const SUBJECT: usize = 72;

pub(crate) fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let Some(base) = base(root)? else { return Ok(Vec::new()) };
    let log = git(root, &["log", "--no-merges", "-z", "--format=%h%n%s%n%b", &format!("{base}..HEAD")])?;
    let mut findings = Vec::new();
    for commit in log.split('\0').filter(|commit| !commit.is_empty()) {
        let mut lines = commit.lines();
        let (hash, subject) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let width = subject.chars().count();
        if width > SUBJECT {
            findings.push(Finding::new(
                hash,
                0,
                format!("subject has {width} characters, at most {SUBJECT}: {subject}"),
            ));
        }
        if lines.all(|line| line.trim().is_empty()) {
            findings.push(Finding::new(hash, 0, format!("the body must state the reason of the change: {subject}")));
        }
    }
    Ok(findings)
}

/// Returns the last commit that is not checked. In a shallow clone this is its oldest commit or a later one, since the
/// oldest adds all files.
fn base(root: &Path) -> Result<Option<String>, String> {
    if let Ok(tag) = git(root, &["describe", "--tags", "--abbrev=0"]) {
        return Ok(Some(tag.trim().to_owned()));
    }
    let added = git(root, &["log", "--diff-filter=A", "--format=%H", "--", "hack/check-tree/commits.rs"])?;
    Ok(added.lines().last().map(str::to_owned))
}
