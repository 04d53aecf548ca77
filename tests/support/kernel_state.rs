//! Reads mounts, cgroups and processes from the kernel, to check what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the mount points below `prefix`, in the order of their creation.
pub(crate) fn mounts_under(prefix: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| PathBuf::from(unescape(point)));
    points.filter(|point| point.starts_with(prefix)).collect()
}

/// Blanks and the like are encoded as `\040`.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

/// Returns where each cgroup hierarchy is mounted: its controllers (or `unified`), and the
/// directory.
pub(crate) fn hierarchies() -> Vec<(String, PathBuf)> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut found = Vec::new();
    for line in table.lines() {
        let (mount, rest) = line.split_once(" - ").unwrap();
        let mut rest = rest.split(' ');
        let (kind, options) = (rest.next().unwrap(), rest.nth(1).unwrap());
        let point = PathBuf::from(unescape(mount.split(' ').nth(4).unwrap()));
        let ours = point.starts_with("/sys/fs/cgroup");
        match kind {
            "cgroup2" if ours => found.push(("unified".to_owned(), point)),
            "cgroup" if ours => found.push((options.trim_start_matches("rw,").to_owned(), point)),
            _ => {}
        }
    }
    assert!(!found.is_empty(), "no cgroups are mounted");
    found
}

/// Returns whether this machine has only cgroup v2.
pub(crate) fn is_v2() -> bool {
    hierarchies().iter().all(|(name, _)| name == "unified")
}

/// Returns the directory of `cgroup` (a path from the root) in the hierarchy with `controller`.
pub(crate) fn cgroup_dir(controller: &str, cgroup: &str) -> PathBuf {
    let all = hierarchies();
    let has = |(names, _): &&(String, PathBuf)| names.split(',').any(|name| name == controller);
    let (_, point) = all.iter().find(has).unwrap_or_else(|| all.iter().find(|(name, _)| name == "unified").unwrap());
    point.join(cgroup.trim_start_matches('/'))
}

/// Returns every cgroup below `parent` in any hierarchy, as directories, without `parent`.
pub(crate) fn cgroups_under(parent: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (_, point) in hierarchies() {
        collect_dirs(&point.join(parent.trim_start_matches('/')), &mut found);
    }
    found.sort();
    found
}

fn collect_dirs(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        found.push(entry.path());
        collect_dirs(&entry.path(), found);
    }
}

/// A process, as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) name: String,
}

/// Returns all processes that are not zombies.
pub(crate) fn processes() -> Vec<Process> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let (Some(open), Some(close)) = (stat.find('('), stat.rfind(')')) else { continue };
        let mut rest = stat[close + 2..].split(' ');
        let (state, parent) = (rest.next().unwrap(), rest.next().unwrap().parse().unwrap());
        if !matches!(state, "Z" | "X") {
            all.push(Process { pid, parent, name: stat[open + 1..close].to_owned() });
        }
    }
    all
}

/// Returns the processes that belong to a daemon with directories below `dir` and cgroups below
/// `parent`: its shims, the processes of its containers, and their descendants; not the daemon
/// itself.
pub(crate) fn processes_of(dir: &Path, parent: &str, daemon: Option<i32>) -> Vec<Process> {
    let all = processes();
    let in_dir = |pid: i32| fs::read_link(format!("/proc/{pid}/fd/2")).is_ok_and(|file| file.starts_with(dir));
    let in_cgroup = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let below = format!("{parent}/");
        text.lines()
            .filter_map(|line| line.splitn(3, ':').nth(2))
            .any(|path| path.starts_with(&below) || path == parent)
    };
    let shims: BTreeSet<i32> = all.iter().filter(|p| p.name == "crisp-shim").map(|p| p.pid).collect();
    let mut ours: BTreeSet<i32> = BTreeSet::new();
    for process in &all {
        let orphan = process.name == "crisp-init" && !shims.contains(&process.parent);
        let own = process.name != "crisp" && in_dir(process.pid);
        if Some(process.pid) != daemon && (own || in_cgroup(process.pid) || orphan) {
            ours.insert(process.pid);
        }
    }
    loop {
        let before = ours.len();
        let more: Vec<i32> = all.iter().filter(|p| ours.contains(&p.parent)).map(|p| p.pid).collect();
        ours.extend(more);
        if ours.len() == before {
            return all.into_iter().filter(|p| ours.contains(&p.pid)).collect();
        }
    }
}

/// Returns the processes in the cgroup with the last name `container`, the container's first
/// process first.
pub(crate) fn pids_in(container: &str, parent: &str) -> Vec<i32> {
    let dirs = cgroups_under(parent);
    let dir = dirs.iter().find(|dir| dir.ends_with(container) && !read_pids(dir).is_empty());
    let mut pids = dir.map(|dir| read_pids(dir)).unwrap_or_default();
    // Sampled once per process: the key of an exiting process would change.
    pids.sort_by_cached_key(|pid| started(*pid));
    pids
}

fn read_pids(dir: &Path) -> Vec<i32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Returns the start time of a process, in ticks since the boot.
pub(crate) fn started(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rfind(')').map_or("", |close| &stat[close + 2..]);
    rest.split(' ').nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(u64::MAX)
}

/// Returns the CPU time of a process, in ticks.
pub(crate) fn ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rfind(')').map_or("", |close| &stat[close + 2..]);
    rest.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

pub(crate) fn is_alive(pid: i32) -> bool {
    processes().iter().any(|process| process.pid == pid)
}

/// Returns the lines of `/proc/PID/status` by name.
pub(crate) fn status(pid: i32) -> BTreeMap<String, String> {
    status_lines(&fs::read_to_string(format!("/proc/{pid}/status")).unwrap())
}

/// Parses the text of such a file.
pub(crate) fn status_lines(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

/// Resources of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) fds: usize,
    pub(crate) threads: usize,
    /// Resident memory in KiB.
    pub(crate) rss: u64,
    /// The anonymous part of it.
    pub(crate) anonymous: u64,
}

pub(crate) fn holding(pid: i32) -> Holding {
    let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    let status = status(pid);
    let memory = |key: &str| status[key].trim_end_matches(" kB").parse().unwrap();
    Holding { fds: count("fd"), threads: count("task"), rss: memory("VmRSS"), anonymous: memory("RssAnon") }
}

/// Returns the CPU time of a process.
pub(crate) fn processor_time(pid: i32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let rest = stat.rfind(')').map_or("", |close| &stat[close + 2..]);
    let ticks: u64 = rest.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap()
}

/// Returns the anonymous memory of a process in KiB. Unlike PSS, it does not change with the processes that run the
/// same program.
pub(crate) fn anonymous_memory(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    status_lines(&text)["Anonymous"].trim_end_matches(" kB").parse().unwrap()
}
