//! The processes of a runtime (daemon and shims), with their memory and CPU time as counted by the kernel.
//!
//! The daemon is the process that listens on the socket (`SO_PEERCRED`). Its runtime also includes
//! its descendants, every process with the ID of a measured pod or container in its arguments
//! (containerd's shims, conmon), and every process in the daemon's cgroup, unless the benchmark is
//! in the same cgroup. Programs of containers are not included, except the program of a pause
//! container.
//!
//! The CPU time of an operation is the CPU time of two cgroups meanwhile: the daemon's, if it has
//! its own, and the parent of the pods. This includes short-lived helpers, and the runtime's work
//! inside a container before its program runs. If the daemon has no cgroup of its own, the times of
//! its processes and of their reaped children are added up.

pub(super) mod machine;
mod memory;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use cgroup::Layout;
use nix::unistd::Pid;

/// Program of the benchmark's containers; processes with these arguments are not counted as the runtime's.
pub(super) const PROGRAM: [&str; 2] = ["sleep", "86399"];
/// `USER_HZ`, the unit of times in `/proc/PID/stat`, on every architecture that crisp supports.
const TICKS_PER_SECOND: u64 = 100;

#[derive(Debug)]
pub(super) struct RuntimeProcesses {
    daemon: i32,
    /// CPU time of the daemon's cgroup.
    own: Option<Counter>,
    /// CPU time of the parent cgroup of the pods.
    pods: Option<Counter>,
    /// The line of the cpuacct or v2 hierarchy in `/proc/PID/cgroup`, if the daemon has its own cgroup.
    cgroup: Option<String>,
}

/// A file with the CPU time that a cgroup has used.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Counter {
    /// `cpuacct.usage`: nanoseconds.
    V1(PathBuf),
    /// `cpu.stat`: a line with microseconds.
    V2(PathBuf),
}

/// Memory of a runtime in MB (10^6 bytes).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Memory {
    /// PSS of the daemon, with its program in full.
    pub(super) daemon: f64,
    /// PSS of all other processes.
    pub(super) others: f64,
    /// Memory that each of the other processes has for itself, added up.
    pub(super) others_private: f64,
}

struct Process {
    parent: i32,
    arguments: Vec<u8>,
}

impl RuntimeProcesses {
    /// Finds the daemon that listens on `socket`; `parent` is the parent cgroup of its pods.
    pub(super) fn behind(socket: &Path, parent: Option<&str>) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let daemon = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_pid();
        let layout = Layout::detect().map_err(io::Error::other)?;
        let its = line(&fs::read_to_string(format!("/proc/{daemon}/cgroup"))?);
        let mine = line(&fs::read_to_string("/proc/self/cgroup")?);
        let cgroup = its.filter(|its| Some(its) != mine.as_ref() && !its.ends_with(":/"));
        let own = cgroup.as_deref().and_then(|line| Counter::of(&layout, path_of(line)));
        let pods = parent.and_then(|parent| Counter::of(&layout, parent));
        Ok(Self { daemon, own, pods, cgroup })
    }

    /// Describes the source of CPU times.
    pub(super) fn how(&self) -> &'static str {
        match (&self.own, &self.pods) {
            (Some(_), Some(_)) => "the daemon's cgroup and the parent cgroup of the pods",
            (Some(_), None) => "the daemon's cgroup",
            (None, Some(_)) => "the runtime's processes and the parent cgroup of the pods",
            (None, None) => "the runtime's processes",
        }
    }

    /// Returns the CPU time used for this runtime so far, including its pods.
    pub(super) fn all_cpu(&self, ids: &[&str]) -> io::Result<Duration> {
        let own = match &self.own {
            Some(counter) => counter.read()?,
            None => self.members(ids)?.into_iter().map(|pid| clock(pid) + waited_for(pid)).sum(),
        };
        Ok(own + self.pods.as_ref().map_or(Ok(Duration::ZERO), Counter::read)?)
    }

    /// Returns the CPU time of the current processes, except those in containers, which have another PID namespace.
    pub(super) fn cpu(&self, ids: &[&str]) -> io::Result<Duration> {
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.daemon);
        Ok(self.members(ids)?.into_iter().filter(|pid| namespace(*pid) == own).map(clock).sum())
    }

    /// Returns the memory of the daemon and of all other processes.
    pub(super) fn memory(&self, ids: &[&str]) -> io::Result<Memory> {
        let mut memory = Memory::default();
        for pid in self.members(ids)? {
            match self.add_memory(&mut memory, pid) {
                Ok(()) => {}
                // The process exited in the meantime.
                Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(3) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(memory)
    }

    fn add_memory(&self, memory: &mut Memory, pid: i32) -> io::Result<()> {
        if pid == self.daemon {
            memory.daemon = memory::with_program_in_full(pid)?;
        } else {
            memory.others += memory::pss(pid)?;
            memory.others_private += memory::private(pid)?;
        }
        Ok(())
    }

    /// Returns whether this process runs from the same file as the daemon.
    pub(super) fn shares_program(&self) -> io::Result<bool> {
        let [mine, its] = [program_file("self")?, program_file(&self.daemon.to_string())?];
        Ok((mine.dev(), mine.ino()) == (its.dev(), its.ino()))
    }

    /// Returns the size of the daemon's program file in MB (10^6 bytes).
    pub(super) fn program_size(&self) -> io::Result<f64> {
        Ok(program_file(&self.daemon.to_string())?.len() as f64 / 1e6)
    }

    /// Returns the mounts that the daemon sees.
    pub(super) fn mountinfo(&self) -> io::Result<String> {
        fs::read_to_string(format!("/proc/{}/mountinfo", self.daemon))
    }

    /// Resets the value of [`RuntimeProcesses::peak`].
    pub(super) fn reset_peak(&self) -> io::Result<()> {
        fs::write(format!("/proc/{}/clear_refs", self.daemon), "5")
    }

    /// Returns the peak resident memory of the daemon in MB (10^6 bytes).
    pub(super) fn peak(&self) -> io::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon))?;
        memory::kib(&status, "VmHWM:").ok_or_else(|| io::Error::other("no VmHWM in /proc/PID/status"))
    }

    fn members(&self, ids: &[&str]) -> io::Result<BTreeSet<i32>> {
        let all = processes()?;
        let ids: HashSet<&[u8]> = ids.iter().filter(|id| !id.is_empty()).map(|id| id.as_bytes()).collect();
        // An ID is a whole word, also in a path. Searching each ID in each process is too slow with 1,000 pods.
        let names_one = |arguments: &[u8]| {
            arguments.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'-').any(|word| ids.contains(word))
        };
        let in_cgroup = |pid: i32| {
            let Some(own) = &self.cgroup else { return false };
            fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| line(&text).as_ref() == Some(own))
        };
        let mine = i32::try_from(std::process::id()).unwrap_or_default();
        let seeds = all
            .iter()
            .filter(|(pid, process)| **pid == self.daemon || names_one(&process.arguments) || in_cgroup(**pid));
        let mut members: BTreeSet<i32> = seeds.map(|(pid, _)| *pid).filter(|pid| *pid != mine).collect();
        let mut grown = true;
        while grown {
            let children = all.iter().filter(|(pid, process)| members.contains(&process.parent) && **pid != mine);
            let children: Vec<i32> = children.map(|(pid, _)| *pid).collect();
            let before = members.len();
            members.extend(children);
            grown = members.len() > before;
        }
        let program = PROGRAM.map(str::as_bytes).join(&0);
        members.retain(|pid| all.get(pid).is_none_or(|process| without_nul(&process.arguments) != program));
        Ok(members)
    }
}

fn program_file(process: &str) -> io::Result<fs::Metadata> {
    fs::metadata(format!("/proc/{process}/exe"))
}

fn without_nul(arguments: &[u8]) -> &[u8] {
    arguments.strip_suffix(&[0]).unwrap_or(arguments)
}

impl Counter {
    fn of(layout: &Layout, path: &str) -> Option<Self> {
        let below = |top: &Path| top.join(path.trim_start_matches('/'));
        let v1 = layout.mount_of("cpuacct").map(|top| Self::V1(below(top).join("cpuacct.usage")));
        let v2 = layout.unified().map(|top| Self::V2(below(top).join("cpu.stat")));
        [v1, v2].into_iter().flatten().find(|counter| counter.read().is_ok())
    }

    fn read(&self) -> io::Result<Duration> {
        let odd = |path: &Path| io::Error::other(format!("no CPU time in {}", path.display()));
        match self {
            Self::V1(path) => {
                let nanos = fs::read_to_string(path)?.trim().parse().map_err(|_| odd(path))?;
                Ok(Duration::from_nanos(nanos))
            }
            Self::V2(path) => {
                let text = fs::read_to_string(path)?;
                let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
                micros.map(Duration::from_micros).ok_or_else(|| odd(path))
            }
        }
    }
}

/// Returns the line of `/proc/PID/cgroup` for the hierarchy that counts CPU time.
fn line(text: &str) -> Option<String> {
    let has_cpuacct =
        |line: &&str| line.split(':').nth(1).is_some_and(|names| names.split(',').any(|n| n == "cpuacct"));
    let found = text.lines().find(has_cpuacct).or_else(|| text.lines().find(|line| line.starts_with("0::")));
    found.map(str::to_owned)
}

fn path_of(line: &str) -> &str {
    line.splitn(3, ':').nth(2).unwrap_or("/")
}

fn processes() -> io::Result<BTreeMap<i32, Process>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Processes that exit in the meantime are left out.
        let Some(parent) = stat(pid, 4).and_then(|parent| i32::try_from(parent).ok()) else { continue };
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        all.insert(pid, Process { parent, arguments });
    }
    Ok(all)
}

/// Returns a field of `/proc/PID/stat`, numbered as in proc(5), from the third on.
fn stat(pid: i32, field: usize) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain any characters, also brackets.
    let (_, rest) = text.rsplit_once(") ")?;
    rest.split(' ').nth(field.checked_sub(3)?)?.parse().ok()
}

/// Returns the CPU time of all current and past threads of a process; 0 if the process no longer exists.
fn clock(pid: i32) -> Duration {
    let clock = nix::time::clock_getcpuclockid(Pid::from_raw(pid)).and_then(nix::time::ClockId::now);
    clock.map_or(Duration::ZERO, Duration::from)
}

/// Returns the CPU time of the reaped children of a process.
fn waited_for(pid: i32) -> Duration {
    let ticks = stat(pid, 16).unwrap_or_default() + stat(pid, 17).unwrap_or_default();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
