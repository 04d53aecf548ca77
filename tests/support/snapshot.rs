//! All that a daemon has made, at one moment, to be compared with another.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::env::TestEnv;
use crate::support::kernel_state;

/// What the kernel lists for one daemon. Processes are listed by kind, since their numbers say nothing and the names of
/// those in containers change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    mounts: Vec<PathBuf>,
    cgroups: Vec<PathBuf>,
    processes: Vec<String>,
    files: Vec<PathBuf>,
    /// Interfaces of pods; the bridge that joins them stays.
    links: Vec<String>,
}

/// crisp's own bridge, by default.
const BRIDGE: &str = "crisp0";

impl Snapshot {
    pub(crate) fn take(env: &TestEnv, daemon: Option<i32>) -> Self {
        let (mut files, mut mounts) = (Vec::new(), Vec::new());
        // What is mounted is listed as a mount, not file by file.
        mounts.extend(kernel_state::mounts_under(&env.state()));
        mounts.extend(kernel_state::mounts_under(&env.root()));
        walk(&env.state().join("pods"), &mounts, &mut files);
        walk(&env.root().join("containers"), &mounts, &mut files);
        // The place for containers is made with the first of them.
        files.retain(|path| !path.ends_with("containers"));
        files.sort();
        mounts.sort();
        let processes = kernel_state::processes_of(env.dir(), env.cgroup(), daemon);
        let mut processes: Vec<String> = processes.into_iter().map(|process| kind(process.name)).collect();
        processes.sort();
        let mut links = env.links();
        links.retain(|name| name != BRIDGE);
        Self { mounts, cgroups: kernel_state::cgroups_under(env.cgroup()), processes, files, links }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// What is here and was not in `before`, or the other way round, in words.
    pub(crate) fn difference(&self, before: &Self) -> String {
        let mut words = String::new();
        let texts = |list: &[PathBuf]| list.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        for (name, now, then) in [
            ("mount", texts(&self.mounts), texts(&before.mounts)),
            ("cgroup", texts(&self.cgroups), texts(&before.cgroups)),
            ("process", self.processes.clone(), before.processes.clone()),
            ("file", texts(&self.files), texts(&before.files)),
            ("interface", self.links.clone(), before.links.clone()),
        ] {
            for new in subtract(&now, &then) {
                writeln!(words, "  {name} is left: {new}").unwrap();
            }
            for gone in subtract(&then, &now) {
                writeln!(words, "  {name} is missing: {gone}").unwrap();
            }
        }
        words
    }
}

fn kind(name: String) -> String {
    if name.starts_with("crisp-") { name } else { "of a container".to_owned() }
}

/// What is in `left` more often than in `right`.
fn subtract(left: &[String], right: &[String]) -> Vec<String> {
    let mut rest = right.to_vec();
    let mut more = Vec::new();
    for item in left {
        match rest.iter().position(|other| other == item) {
            Some(index) => drop(rest.swap_remove(index)),
            None => more.push(item.clone()),
        }
    }
    more
}

/// Logs and the like grow; only what exists counts.
fn walk(dir: &Path, mounts: &[PathBuf], found: &mut Vec<PathBuf>) {
    let mut ahead = vec![dir.to_owned()];
    while let Some(dir) = ahead.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            found.push(path.clone());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !mounts.contains(&path) {
                ahead.push(path);
            }
        }
    }
}
