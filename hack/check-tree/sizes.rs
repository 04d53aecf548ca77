//! Sizes of Rust files and folders.

use std::collections::BTreeMap;

use crate::Finding;

const CODE_LINES: usize = 400;
const FOLDER_SOURCES: usize = 16;

pub(crate) fn check_file(path: &str, content: &str) -> Option<Finding> {
    let lines = content.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("//")).count();
    (lines > CODE_LINES).then(|| Finding::new(path, 0, format!("{lines} lines of code, at most {CODE_LINES}")))
}

/// Counts the sources of each folder, except its mod.rs, lib.rs or main.rs.
pub(crate) fn check_folders(paths: &[&str]) -> Vec<Finding> {
    let mut sources = BTreeMap::<&str, usize>::new();
    for path in paths.iter().filter(|path| path.ends_with(".rs")) {
        if let Some((folder, "mod.rs" | "lib.rs" | "main.rs")) = path.rsplit_once('/') {
            sources.entry(folder).or_default();
        } else if let Some((folder, _)) = path.rsplit_once('/') {
            *sources.entry(folder).or_default() += 1;
        }
    }
    sources.retain(|_, sources| *sources > FOLDER_SOURCES);
    let finding = |(folder, sources)| Finding::new(folder, 0, format!("{sources} sources, at most {FOLDER_SOURCES}"));
    sources.into_iter().map(finding).collect()
}
