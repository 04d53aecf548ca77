//! The kernel objects and files of a daemon at one time, for comparisons.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::env::TestEnv;
use crate::support::kernel_state;

/// The objects of one daemon. Processes are listed by kind, because their PIDs and the names of
/// those in containers change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    mounts: Vec<PathBuf>,
    cgroups: Vec<PathBuf>,
    processes: Vec<String>,
    files: Vec<PathBuf>,
    /// Interfaces of pods, without the bridge.
    links: Vec<String>,
}

/// The default name of crisp's bridge.
const BRIDGE: &str = "crisp0";

impl Snapshot {
    pub(crate) fn take(env: &TestEnv, daemon: Option<i32>) -> Self {
        let (mut files, mut mounts) = (Vec::new(), Vec::new());
        // Mounts are listed as such, without their files.
        mounts.extend(kernel_state::mounts_under(&env.state()));
        mounts.extend(kernel_state::mounts_under(&env.root()));
        walk(&env.state().join("pods"), &mounts, &mut files);
        walk(&env.root().join("containers"), &mounts, &mut files);
        // The directory is created with the first container.
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

    /// Returns the differences from `before` as text.
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

/// Returns the entries that are in `left` more often than in `right`.
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

/// Sizes are ignored, because logs grow.
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
