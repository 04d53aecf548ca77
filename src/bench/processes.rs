//! The processes of a runtime: its daemon and what keeps its pods, their memory and processor time, as the kernel counts them.
//!
//! The daemon is who listens on the socket (`SO_PEERCRED`). With it goes every process that descends from it, that names one of
//! the measured pods or containers in its arguments (containerd's shims, conmon), or that is in the daemon's cgroup, where that
//! is not the benchmark's own. The containers' programs themselves are left out; a pause container's is not.
//!
//! Processor time of an operation is what two cgroups have used meanwhile: the daemon's, where it has one of its own, and that above the
//! pods. So helpers that came and went count too, and so does what the runtime does inside a container before its program
//! runs. Where the daemon has no cgroup of its own, its processes are asked, with the children that they have waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use cgroup::Layout;
use nix::unistd::Pid;

/// What the containers of the benchmark run; by this they are known as no part of the runtime.
pub(super) const PROGRAM: [&str; 2] = ["sleep", "86399"];
/// What the kernel counts processor time of children in, on every architecture that crisp knows.
const TICKS_PER_SECOND: u64 = 100;

#[derive(Debug)]
pub(super) struct RuntimeProcesses {
    daemon: i32,
    /// The file that counts the processor time of the daemon's cgroup.
    own: Option<Counter>,
    /// The same of the cgroup above the pods.
    pods: Option<Counter>,
    /// The daemon's line in `/proc/PID/cgroup` that counts, where its cgroup is its own.
    cgroup: Option<String>,
}

/// A file that tells how much processor time a cgroup has used.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Counter {
    /// Nanoseconds, and nothing else.
    V1(PathBuf),
    /// Among other lines one with microseconds.
    V2(PathBuf),
}

/// What a runtime holds in memory, in MB (10^6 bytes).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Memory {
    pub(super) daemon: f64,
    /// Of all others together.
    pub(super) others: f64,
}

struct Process {
    parent: i32,
    arguments: Vec<u8>,
}

impl RuntimeProcesses {
    /// Of the daemon that listens on `socket`; `parent` is the cgroup that its pods are put into.
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

    /// How processor time is found out, in words.
    pub(super) fn how(&self) -> &'static str {
        match (&self.own, &self.pods) {
            (Some(_), Some(_)) => "the daemon's cgroup and that above the pods",
            (Some(_), None) => "the daemon's cgroup",
            (None, Some(_)) => "the runtime's processes and the cgroup above the pods",
            (None, None) => "the runtime's processes",
        }
    }

    /// Processor time that was spent for this runtime so far, by whomever.
    pub(super) fn all_cpu(&self, ids: &[&str]) -> io::Result<Duration> {
        let own = match &self.own {
            Some(counter) => counter.read()?,
            None => self.members(ids)?.into_iter().map(|pid| clock(pid) + waited_for(pid)).sum(),
        };
        Ok(own + self.pods.as_ref().map_or(Ok(Duration::ZERO), Counter::read)?)
    }

    /// Processor time of the processes that are there now, without those in containers: they have PID namespaces of their own.
    pub(super) fn cpu(&self, ids: &[&str]) -> io::Result<Duration> {
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.daemon);
        Ok(self.members(ids)?.into_iter().filter(|pid| namespace(*pid) == own).map(clock).sum())
    }

    /// Proportional shares (PSS): pages that several processes share count once over all of them.
    pub(super) fn memory(&self, ids: &[&str]) -> io::Result<Memory> {
        let mut memory = Memory::default();
        for pid in self.members(ids)? {
            match pss(pid) {
                Ok(mib) if pid == self.daemon => memory.daemon = mib,
                Ok(mib) => memory.others += mib,
                // It ended meanwhile.
                Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(3) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(memory)
    }

    /// Lets [`RuntimeProcesses::peak`] begin anew.
    pub(super) fn reset_peak(&self) -> io::Result<()> {
        fs::write(format!("/proc/{}/clear_refs", self.daemon), "5")
    }

    /// The most memory of the daemon that was resident at any moment, in MB (10^6 bytes).
    pub(super) fn peak(&self) -> io::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon))?;
        kib(&status, "VmHWM:").ok_or_else(|| io::Error::other("the kernel does not tell VmHWM"))
    }

    fn members(&self, ids: &[&str]) -> io::Result<BTreeSet<i32>> {
        let all = processes()?;
        let names_one = |arguments: &[u8]| {
            ids.iter().any(|id| !id.is_empty() && arguments.windows(id.len()).any(|window| window == id.as_bytes()))
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
        let odd = |path: &Path| io::Error::other(format!("{} tells no processor time", path.display()));
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

/// The line of `/proc/PID/cgroup` that says where processor time is counted.
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
        // Those that end meanwhile are none.
        let Some(parent) = stat(pid, 4).and_then(|parent| i32::try_from(parent).ok()) else { continue };
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        all.insert(pid, Process { parent, arguments });
    }
    Ok(all)
}

/// A field of `/proc/PID/stat`, as proc(5) counts them, from the third on.
fn stat(pid: i32, field: usize) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, also brackets.
    let (_, rest) = text.rsplit_once(") ")?;
    rest.split(' ').nth(field.checked_sub(3)?)?.parse().ok()
}

/// Processor time of all threads that a process has and had; none of one that is gone.
fn clock(pid: i32) -> Duration {
    let clock = nix::time::clock_getcpuclockid(Pid::from_raw(pid)).and_then(nix::time::ClockId::now);
    clock.map_or(Duration::ZERO, Duration::from)
}

/// Processor time of children that a process has waited for.
fn waited_for(pid: i32) -> Duration {
    let ticks = stat(pid, 16).unwrap_or_default() + stat(pid, 17).unwrap_or_default();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

fn pss(pid: i32) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(kib(&text, "Pss:").unwrap_or_default())
}

/// The number of KiB behind `name`, in MB (10^6 bytes).
fn kib(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(rest.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * 1024.0 / 1e6)
}

#[cfg(test)]
#[path = "processes_tests.rs"]
mod tests;
