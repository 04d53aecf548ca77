//! `crisp explain --inside`: what the main process of a container can see, and what it was sized for at its start.
//!
//! Only `/proc/PID` is read. The container decides its content, so reads are bounded in size and time, and no text of
//! it is printed but numbers, versions and paths of printable characters.

mod proc_files;
mod programs;

use std::io::{self, Write};
use std::path::Path;

use model::resources::{Bytes, CpuSet, ObservedLimits};
use proc_files::ProcFiles;
use programs::Sizing;
use serde::Serialize;

use super::super::color::columns;
use super::super::units;

#[derive(Debug, Serialize)]
pub(super) struct Inside {
    pid: u32,
    /// File name of the program.
    program: Option<String>,
    threads: Option<u64>,
    /// CPUs that the process may run on, as its `sched_getaffinity` shows them.
    cpus: Option<String>,
    cgroup_mounts: Vec<CgroupMount>,
    /// None if the program is not one of a known runtime.
    sizing: Option<Sizing>,
    /// Differences between sizing and limits.
    gaps: Vec<String>,
}

/// A cgroup file system in the mount namespace of the process.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct CgroupMount {
    path: String,
    version: &'static str,
    read_only: bool,
}

/// The limits that the kernel enforces now.
#[derive(Debug, Clone, Copy, Default)]
struct Limits {
    millicpus: Option<u64>,
    memory: Option<u64>,
}

impl Limits {
    fn of(observed: &ObservedLimits) -> Self {
        let period = observed.cpu_period.map_or(units::PERIOD, |micros| micros.0).max(1);
        let millicpus = observed.cpu_quota.map(|micros| micros.0.saturating_mul(1000) / period);
        Self { millicpus, memory: observed.memory.map(|Bytes(bytes)| bytes) }
    }
}

/// Reads the process; None if it has exited, or is not in the container's cgroup any more.
pub(super) fn look(pid: u32, cgroup: &str, observed: &ObservedLimits) -> Option<Inside> {
    let files = ProcFiles::new(pid);
    let groups = files.text("cgroup")?;
    let inside = |line: &str| line.splitn(3, ':').nth(2).is_some_and(|path| Path::new(path).starts_with(cgroup));
    if !groups.lines().any(inside) {
        return None;
    }
    let status = files.text("status").unwrap_or_default();
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(value.trim_start_matches(':').trim().to_owned())
    };
    let cpus = field("Cpus_allowed_list").filter(|list| CpuSet::new(list).is_ok());
    let seen = cpus.as_deref().and_then(|list| CpuSet::new(list).ok()).map(|set| set.members().count() as u64);
    let sizing = programs::sizing(&files, seen);
    let limits = Limits::of(observed);
    Some(Inside {
        pid,
        program: files.program(),
        threads: field("Threads").and_then(|count| count.parse().ok()),
        gaps: sizing.as_ref().map(|sizing| gaps(sizing, limits)).unwrap_or_default(),
        cpus,
        cgroup_mounts: cgroup_mounts(&files.text("mountinfo").unwrap_or_default()),
        sizing,
    })
}

/// Finds cgroup file systems in a mountinfo: see proc_pid_mountinfo(5).
fn cgroup_mounts(mountinfo: &str) -> Vec<CgroupMount> {
    let mount = |line: &str| {
        let (mount, source) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(4);
        let (path, options) = (fields.next()?, fields.next()?);
        let version = match source.split(' ').next()? {
            "cgroup" => "v1",
            "cgroup2" => "v2",
            _ => return None,
        };
        let read_only = options.split(',').any(|option| option == "ro");
        let printable = path.chars().all(|c| c.is_ascii_graphic());
        printable.then(|| CgroupMount { path: path.to_owned(), version, read_only })
    };
    // Every controller of v1 is a mount of its own; a hostile container can add any number.
    mountinfo.lines().filter_map(mount).take(32).collect()
}

fn gaps(sizing: &Sizing, limits: Limits) -> Vec<String> {
    let mut gaps = Vec::new();
    if let (Some(cpus), Some(limit)) = (sizing.cpus, limits.millicpus) {
        let shown = units::millis(limit);
        match cpus.saturating_mul(1000) {
            // A limit of 1500m needs two threads.
            sized if sized >= limit.saturating_add(1000) => {
                gaps.push(format!("sized for {cpus} CPUs, the limit is {shown}: its threads are throttled"));
            }
            sized if sized < limit => {
                gaps.push(format!("sized for {cpus} CPUs, the limit is {shown}: the rest is unused"))
            }
            _ => {}
        }
    }
    if let (Some(heap), Some(limit)) = (sizing.memory, limits.memory) {
        let (shown, limit_shown) = (units::bytes(heap), units::bytes(limit));
        if heap >= limit {
            gaps.push(format!("sized for {shown} of heap, the memory limit is {limit_shown}: an OOM kill is possible"));
        } else if heap < limit / 4 {
            gaps.push(format!("sized for {shown} of heap, the memory limit is {limit_shown}: most of it is unused"));
        }
    }
    gaps
}

pub(super) fn print(out: &mut impl Write, inside: &Inside) -> io::Result<()> {
    let Inside { pid, program, threads, cpus, cgroup_mounts, sizing, gaps } = inside;
    let program = program.as_deref().unwrap_or("unknown program");
    let noun = if *threads == Some(1) { "thread" } else { "threads" };
    let threads = threads.map(|count| format!(", {count} {noun}")).unwrap_or_default();
    writeln!(out, "inside: pid {pid} ({program}){threads}")?;
    let mut rows = Vec::new();
    let mut row = |name: &str, text: String| rows.push(["".to_owned(), name.to_owned(), text]);
    row("CPUs", cpus.clone().unwrap_or_else(|| "unknown".to_owned()));
    let mounts = cgroup_mounts.iter().map(|CgroupMount { path, version, read_only }| {
        format!("{version} at {path}, {}", if *read_only { "read-only" } else { "writable" })
    });
    let mounts: Vec<String> = mounts.collect();
    row("cgroup", if mounts.is_empty() { "not mounted: limits cannot be read".to_owned() } else { mounts.join("; ") });
    if let Some(sizing) = sizing {
        row(sizing.runtime, sizing.words());
    }
    gaps.iter().for_each(|gap| row("gap", gap.clone()));
    columns(&rows).iter().try_for_each(|line| writeln!(out, "{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizing(cpus: Option<u64>, memory: Option<u64>) -> Sizing {
        Sizing { runtime: "Go", version: None, cpus, memory, from: Vec::new() }
    }

    #[test]
    fn differences_between_sizing_and_limits_are_named() {
        let limits = |millicpus, mib: u64| Limits { millicpus: Some(millicpus), memory: Some(mib << 20) };
        for (cpus, limit, word) in [(4, 500, "throttled"), (1, 4000, "unused"), (2, 1000, "throttled")] {
            let found = gaps(&sizing(Some(cpus), None), limits(limit, 64));
            assert!(found.len() == 1 && found[0].contains(word), "{cpus} {limit}: {found:?}");
        }
        for (cpus, limit) in [(1, 500), (2, 1500), (2, 2000)] {
            assert!(gaps(&sizing(Some(cpus), None), limits(limit, 64)).is_empty(), "{cpus} {limit}");
        }
        assert!(gaps(&sizing(None, Some(64 << 20)), limits(1000, 64))[0].contains("OOM kill"));
        assert!(gaps(&sizing(None, Some(8 << 20)), limits(1000, 64))[0].contains("unused"));
        assert!(gaps(&sizing(None, Some(32 << 20)), limits(1000, 64)).is_empty());
        assert!(gaps(&sizing(Some(4), Some(1)), Limits::default()).is_empty());
    }

    #[test]
    fn cgroup_mounts_are_read_from_mountinfo() {
        let text = "36 35 0:28 /a /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n\
                    37 35 0:29 / /proc rw - proc proc rw\n\
                    38 35 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                    39 35 0:31 / /\u{1b}[31m rw - cgroup cgroup rw\nshort\n";
        let mount = |path: &str, version, read_only| CgroupMount { path: path.to_owned(), version, read_only };
        assert_eq!(
            cgroup_mounts(text),
            [mount("/sys/fs/cgroup", "v2", true), mount("/sys/fs/cgroup/cpu", "v1", false)]
        );
    }
}
