//! Cgroups that a test creates, as the kubelet creates those of pods.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::process::Signal;

use crate::support::harness::{kill, pause, seconds};
use crate::support::kernel_state;

/// Creates `path` and its missing parents: before the pod, and not in the v2 hierarchy of a hybrid
/// host.
pub(crate) fn make(path: &str) {
    for mut dir in kubelets_trees() {
        for part in path.trim_start_matches('/').split('/') {
            give_controllers(&dir);
            dir.push(part);
            if !dir.exists() {
                fs::create_dir(&dir).unwrap();
                fill_cpuset(&dir);
            }
        }
        give_controllers(&dir);
    }
}

/// Removes such a cgroup, which must exist and be empty.
pub(crate) fn remove(path: &str) {
    for tree in kubelets_trees() {
        let dir = tree.join(&path[1..]);
        fs::remove_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    }
}

/// Kills all processes in `path` and below, and removes it from every hierarchy.
pub(crate) fn clear(path: &str) {
    thaw(path);
    let begin = Instant::now();
    loop {
        let pids = pids_below(path);
        if pids.is_empty() {
            break;
        }
        assert!(begin.elapsed() < seconds(10), "these cannot be killed: {pids:?}");
        pids.iter().for_each(|pid| kill(*pid, Signal::KILL));
        pause();
    }
    remove_all(path);
}

/// Removes `path` and all below it, where no process runs.
pub(crate) fn remove_all(path: &str) {
    let begin = Instant::now();
    loop {
        let mut left = dirs_of(path);
        // Children before parents.
        left.sort_by_key(|dir| std::cmp::Reverse(dir.components().count()));
        left.retain(|dir| fs::remove_dir(dir).is_err() && dir.exists());
        if left.is_empty() {
            return;
        }
        assert!(begin.elapsed() < seconds(10), "these cannot be removed: {left:?}");
        pause();
    }
}

/// Killed processes exit only when they are not frozen.
pub(crate) fn thaw(path: &str) {
    for dir in dirs_of(path) {
        for (file, word) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
            if dir.join(file).exists() {
                fs::write(dir.join(file), word).ok();
            }
        }
    }
}

fn dirs_of(path: &str) -> Vec<PathBuf> {
    let mut dirs = kernel_state::cgroups_under(path);
    dirs.extend(kernel_state::hierarchies().into_iter().map(|(_, point)| point.join(&path[1..])));
    dirs
}

fn pids_below(path: &str) -> BTreeSet<i32> {
    let texts = dirs_of(path).into_iter().map(|dir| fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default());
    texts.flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>()).collect()
}

fn kubelets_trees() -> impl Iterator<Item = PathBuf> {
    let v2 = kernel_state::is_v2();
    kernel_state::hierarchies().into_iter().filter(move |(name, _)| v2 || name != "unified").map(|(_, point)| point)
}

/// On version 2, enables the controllers for the children of `dir`.
fn give_controllers(dir: &Path) {
    let Ok(controllers) = fs::read_to_string(dir.join("cgroup.controllers")) else { return };
    for name in controllers.split_whitespace() {
        fs::write(dir.join("cgroup.subtree_control"), format!("+{name}")).ok();
    }
}

/// On version 1, a new cpuset has no CPUs and accepts no process.
fn fill_cpuset(dir: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let above = dir.parent().unwrap().join(file);
        if dir.join("cpuset.cpu_exclusive").exists() {
            fs::write(dir.join(file), fs::read_to_string(above).unwrap()).unwrap();
        }
    }
}
