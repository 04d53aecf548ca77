//! A cgroup in memory that follows the kernel's rules, as far as the engine needs them.
//!
//! The same tests run with it and with the kernel, so a difference between the two is found.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use model::resources::{CpuSet, HugePageSize};
use rustix::io::Errno;

use crate::layout::Version;
use crate::limits::knob::{CgroupFs, Knob, Values, huge_page_bytes, page};
use crate::limits::memory_shrink::ShrinkTimeouts;
use crate::systemd::{BusError, SyncError, SystemdError};

/// The simulated host has these CPUs and one memory node.
const CPUS: &str = "0-7";
const MEMS: &str = "0";
const NO_LIMIT_V1: u64 = 9_223_372_036_854_771_712;

/// One simulated cgroup, its parent and its host.
#[derive(Debug)]
pub struct FakeCgroup {
    version: Version,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    files: BTreeMap<String, String>,
    /// Memory that cannot be reclaimed.
    anon: u64,
    /// Memory that can be reclaimed.
    cache: u64,
    /// The parent's quota and period, where it has a limit.
    parent: Option<(u64, u64)>,
    /// The number of further writes that succeed, and the error of the next one.
    fault: Option<(usize, Errno)>,
    log: Vec<(Knob, String)>,
    oom_kills: u64,
    /// Properties that the fake systemd received; `None` if it fails.
    known: Values,
    deaf: bool,
}

impl FakeCgroup {
    pub fn v1() -> Self {
        let unlimited = NO_LIMIT_V1.to_string();
        Self::with_files(
            Version::V1,
            &[
                ("cpu.cfs_quota_us", "-1"),
                ("cpu.cfs_period_us", "100000"),
                ("cpu.shares", "1024"),
                ("cpuset.cpus", CPUS),
                ("cpuset.mems", MEMS),
                ("hugetlb.2MB.limit_in_bytes", "9223372036852678656"),
                ("memory.limit_in_bytes", &unlimited),
                ("memory.memsw.limit_in_bytes", &unlimited),
                ("pids.max", "max"),
            ],
        )
    }

    pub fn v2() -> Self {
        Self::with_files(
            Version::V2,
            &[
                ("cpu.max", "max 100000"),
                ("cpu.weight", "100"),
                ("cpuset.cpus", ""),
                ("cpuset.mems", ""),
                ("hugetlb.2MB.max", "max"),
                ("hugetlb.2MB.rsvd.max", "max"),
                ("memory.high", "max"),
                ("memory.low", "0"),
                ("memory.max", "max"),
                ("memory.min", "0"),
                ("memory.oom.group", "0"),
                ("memory.swap.max", "max"),
                ("pids.max", "max"),
            ],
        )
    }

    fn with_files(version: Version, files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(file, value)| ((*file).to_owned(), (*value).to_owned())).collect();
        let state = State {
            files,
            anon: 0,
            cache: 0,
            parent: None,
            fault: None,
            log: Vec::new(),
            oom_kills: 0,
            known: Values::new(),
            deaf: false,
        };
        Self { version, state: RefCell::new(state) }
    }

    /// Uses memory that cannot be reclaimed.
    #[must_use]
    pub fn using(self, bytes: u64) -> Self {
        self.state.borrow_mut().anon = bytes;
        self
    }

    /// Uses memory that can be reclaimed, such as page cache.
    #[must_use]
    pub fn caching(self, bytes: u64) -> Self {
        self.state.borrow_mut().cache = bytes;
        self
    }

    /// Limits the parent to this much CPU time in each period.
    #[must_use]
    pub fn under(self, quota: u64, period: u64) -> Self {
        self.state.borrow_mut().parent = Some((quota, period));
        self
    }

    /// Removes a file, as on a host without it.
    #[must_use]
    pub fn without(self, file: &str) -> Self {
        self.state.borrow_mut().files.remove(file);
        self
    }

    /// Lets this many writes succeed, and fails the next one once.
    pub fn fail_after(&self, writes: usize, errno: Errno) {
        self.state.borrow_mut().fault = Some((writes, errno));
    }

    /// Removes the cgroup.
    pub fn vanish(&self) {
        self.state.borrow_mut().files.clear();
    }

    /// Returns all current values.
    pub fn files(&self) -> BTreeMap<String, String> {
        self.state.borrow().files.clone()
    }

    /// Returns all successful writes so far.
    pub fn log(&self) -> Vec<(Knob, String)> {
        self.state.borrow().log.clone()
    }

    /// Properties that the fake systemd received.
    pub fn known(&self) -> Values {
        self.state.borrow().known.clone()
    }

    /// Makes the fake systemd fail from now on.
    pub fn ignore_writes(&self) {
        self.state.borrow_mut().deaf = true;
    }

    /// Returns the number of simulated OOM kills.
    pub fn oom_kills(&self) -> u64 {
        self.state.borrow().oom_kills
    }
}

impl CgroupFs for FakeCgroup {
    fn version(&self) -> Version {
        self.version
    }

    fn exists(&self) -> bool {
        !self.state.borrow().files.is_empty()
    }

    fn read(&self, knob: &Knob) -> io::Result<String> {
        let state = self.state.borrow();
        let told = state.synced(self.version, knob.file());
        told.or_else(|| state.files.get(knob.file()).cloned()).ok_or_else(|| Errno::NOENT.into())
    }

    fn write(&self, knob: &Knob, value: &str) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        match state.fault.take() {
            Some((0, errno)) => return Err(errno.into()),
            Some((more, errno)) => state.fault = Some((more - 1, errno)),
            None => {}
        }
        if knob.file() == "memory.reclaim" && self.version == Version::V2 {
            return Ok(state.reclaim(number(value)?)?);
        }
        if !state.files.contains_key(knob.file()) {
            return Err(Errno::NOENT.into());
        }
        let kept = state.take(knob.file(), value.trim())?;
        state.files.insert(knob.file().to_owned(), kept);
        state.log.push((knob.clone(), value.to_owned()));
        Ok(())
    }

    fn location(&self, knob: &Knob) -> PathBuf {
        PathBuf::from("/fake").join(knob.file())
    }

    fn huge_page_sizes(&self) -> Vec<HugePageSize> {
        HugePageSize::new("2MB").into_iter().collect()
    }

    fn shrink_timeouts(&self) -> ShrinkTimeouts {
        ShrinkTimeouts { within: Duration::ZERO, stalled: Duration::ZERO }
    }

    fn sync_manager(&self, changed: &Values) -> Result<(), SyncError> {
        let mut state = self.state.borrow_mut();
        if state.deaf {
            let source = SystemdError::Bus(BusError::Noise);
            return Err(SyncError::Systemd { unit: "fake.scope".to_owned(), source });
        }
        state.known.extend(changed.clone());
        Ok(())
    }
}

impl State {
    /// Files with counters of the kernel.
    fn synced(&self, version: Version, file: &str) -> Option<String> {
        if self.files.is_empty() {
            return None;
        }
        match (version, file) {
            (Version::V1, "memory.usage_in_bytes" | "memory.memsw.usage_in_bytes")
            | (Version::V2, "memory.current") => Some((self.anon + self.cache).to_string()),
            (Version::V1, "memory.stat") => {
                Some(format!("total_rss {}\ntotal_cache {1}\ntotal_inactive_file {1}", self.anon, self.cache))
            }
            (Version::V2, "memory.stat") => Some(format!(
                "anon {}\nfile {1}\nkernel 0\nshmem 0\ninactive_file {1}\nunevictable 0",
                self.anon, self.cache
            )),
            (Version::V1 | Version::V2, "pids.current") => Some("0".to_owned()),
            (Version::V1, "memory.failcnt") => Some("0".to_owned()),
            (Version::V2, "memory.events.local") => Some("low 0\nhigh 0\nmax 0\noom 0".to_owned()),
            (Version::V1, "cpuset.effective_cpus") | (Version::V2, "cpuset.cpus.effective") => {
                let own = self.files.get("cpuset.cpus").filter(|set| !set.is_empty());
                Some(own.map_or(CPUS, String::as_str).to_owned())
            }
            (Version::V1 | Version::V2, _) => None,
        }
    }

    /// Reclaims up to this much memory.
    fn reclaim(&mut self, bytes: u64) -> Result<(), Errno> {
        let given = bytes.min(self.cache);
        self.cache -= given;
        if given == bytes { Ok(()) } else { Err(Errno::AGAIN) }
    }

    /// Reclaims until at most `limit` is in use, as far as possible.
    fn make_room(&mut self, limit: u64) -> bool {
        self.cache = self.cache.min(limit.saturating_sub(self.anon));
        self.anon + self.cache <= limit
    }

    /// Returns a written value in the kernel's form, or its error.
    fn take(&mut self, file: &str, value: &str) -> Result<String, Errno> {
        match file {
            "cpu.cfs_quota_us" => self.take_quota(value),
            "cpu.cfs_period_us" => self.take_period(value),
            "cpu.shares" => Ok(number(value)?.clamp(2, 262_144).to_string()),
            "cpu.max" => take_cpu_max(value),
            "cpu.weight" => match number(value)? {
                weight @ 1..=10_000 => Ok(weight.to_string()),
                _ => Err(Errno::RANGE),
            },
            // v2 reads an empty set as "the parent's".
            "cpuset.cpus" | "cpuset.mems" if value.is_empty() && self.files.contains_key("cpu.weight") => {
                Ok(String::new())
            }
            "cpuset.cpus" => take_set(value, CPUS),
            "cpuset.mems" => take_set(value, MEMS),
            "memory.limit_in_bytes" => {
                let limit = bytes_v1(value, page())?;
                if limit > self.v1("memory.memsw.limit_in_bytes")? {
                    return Err(Errno::INVAL);
                }
                if self.make_room(limit) { Ok(limit.to_string()) } else { Err(Errno::BUSY) }
            }
            "memory.memsw.limit_in_bytes" => {
                let limit = bytes_v1(value, page())?;
                if limit < self.v1("memory.limit_in_bytes")? {
                    return Err(Errno::INVAL);
                }
                if self.make_room(limit) { Ok(limit.to_string()) } else { Err(Errno::BUSY) }
            }
            "memory.high" => {
                let limit = bytes_v2(value, page())?;
                if let Ok(bytes) = limit.parse() {
                    self.make_room(bytes);
                }
                Ok(limit)
            }
            "memory.max" => {
                let limit = bytes_v2(value, page())?;
                if limit.parse::<u64>().is_ok_and(|limit| !self.make_room(limit)) {
                    self.oom_kills += 1;
                }
                Ok(limit)
            }
            "memory.oom.group" if !matches!(value, "0" | "1") => Err(Errno::INVAL),
            "memory.oom.group" => Ok(value.to_owned()),
            "pids.max" if value == "max" => Ok(value.to_owned()),
            "pids.max" => Ok(number(value)?.to_string()),
            _ => match file.strip_prefix("hugetlb.").and_then(|rest| rest.split_once('.')) {
                Some((size, "limit_in_bytes")) => Ok(bytes_v1(value, huge_page_bytes(size))?.to_string()),
                Some((size, _)) => bytes_v2(value, huge_page_bytes(size)),
                None => bytes_v2(value, page()),
            },
        }
    }

    fn v1(&self, file: &str) -> Result<u64, Errno> {
        self.files.get(file).map_or(Ok(NO_LIMIT_V1), |value| number(value))
    }

    fn take_quota(&self, value: &str) -> Result<String, Errno> {
        let quota: i64 = value.parse().map_err(|_| Errno::INVAL)?;
        let Ok(quota) = u64::try_from(quota) else { return Ok("-1".to_owned()) };
        if quota < 1000 {
            return Err(Errno::INVAL);
        }
        self.fits_parent(quota, self.v1("cpu.cfs_period_us")?)?;
        Ok(quota.to_string())
    }

    fn take_period(&self, value: &str) -> Result<String, Errno> {
        let period = number(value)?;
        if !(1000..=1_000_000).contains(&period) {
            return Err(Errno::INVAL);
        }
        if let Some(Ok(quota)) = self.files.get("cpu.cfs_quota_us").map(|quota| quota.parse::<u64>()) {
            self.fits_parent(quota, period)?;
        }
        Ok(period.to_string())
    }

    fn fits_parent(&self, quota: u64, period: u64) -> Result<(), Errno> {
        let ratio = |quota: u64, period: u64| (quota << 20) / period;
        match self.parent {
            Some(parent) if ratio(quota, period) > ratio(parent.0, parent.1) => Err(Errno::INVAL),
            Some(_) | None => Ok(()),
        }
    }
}

fn number(value: &str) -> Result<u64, Errno> {
    value.parse().map_err(|_| Errno::INVAL)
}

fn bytes_v1(value: &str, granule: u64) -> Result<u64, Errno> {
    let bytes = if value == "-1" { NO_LIMIT_V1 } else { number(value)?.min(NO_LIMIT_V1) };
    Ok(bytes - bytes % granule)
}

fn bytes_v2(value: &str, granule: u64) -> Result<String, Errno> {
    if value == "max" {
        return Ok(value.to_owned());
    }
    let bytes = number(value)?;
    Ok(if bytes >= NO_LIMIT_V1 { "max".to_owned() } else { (bytes - bytes % granule).to_string() })
}

fn take_cpu_max(value: &str) -> Result<String, Errno> {
    let (quota, period) = value.split_once(' ').unwrap_or((value, "100000"));
    if !(1000..=1_000_000).contains(&number(period)?) || (quota != "max" && number(quota)? < 1000) {
        return Err(Errno::INVAL);
    }
    Ok(format!("{quota} {period}"))
}

/// v1 refuses CPUs that the parent does not have; the simulated v2 host refuses numbers that no
/// machine has.
fn take_set(value: &str, parent: &str) -> Result<String, Errno> {
    let set = CpuSet::new(value).map_err(|_| Errno::INVAL)?;
    let parent = CpuSet::new(parent).map_err(|_| Errno::INVAL)?;
    if parent.contains(&set) { Ok(set.as_str().to_owned()) } else { Err(Errno::RANGE) }
}
