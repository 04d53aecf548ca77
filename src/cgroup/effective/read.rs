//! Reads the levels from a cgroup to the root.

use std::collections::HashMap;
use std::io;

use model::resources::CpuSet;
use model::{CgroupPath, ErrorClass, ErrorKind};

use super::{EffectiveLimits, Level, LevelKind, LevelReading, effective_limits};
use crate::cgroup::Cgroup;
use crate::cgroupfs::read_once;
use crate::layout::Version;
use crate::limits::knob::{CgroupFs, Knob, Unreadable};
use crate::limits::value::Value;
use crate::stats::{absent, keyed, working_set};

/// Why the limits of a level could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    #[error("reading {knob} of cgroup {cgroup}")]
    Read { cgroup: String, knob: Knob, source: io::Error },
    #[error("reading the limits of cgroup {cgroup}")]
    Unreadable { cgroup: String, source: Unreadable },
}

impl ErrorClass for LevelError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { .. } | Self::Unreadable { .. } => ErrorKind::Internal,
        }
    }
}

/// Levels that were read, each once: containers share those above them.
#[derive(Debug, Default)]
pub struct LevelReadings(HashMap<String, LevelReading>);

impl LevelReadings {
    /// Returns the limits that apply to `group`, a container in the pod with the cgroup `pod`, or that pod itself.
    pub fn effective(&mut self, group: &Cgroup, pod: &CgroupPath) -> Result<EffectiveLimits, LevelError> {
        let kind = if group.path() == pod { LevelKind::Pod } else { LevelKind::Container };
        let mut levels = vec![(level(kind, group.path()), read_files(group, group.path())?)];
        levels.extend(self.levels_above(group, pod)?);
        Ok(effective_limits(&levels))
    }

    /// Returns the limits of the levels above `group`, without its own.
    pub fn above(&mut self, group: &Cgroup, pod: &CgroupPath) -> Result<EffectiveLimits, LevelError> {
        Ok(effective_limits(&self.levels_above(group, pod)?))
    }

    fn levels_above(&mut self, group: &Cgroup, pod: &CgroupPath) -> Result<Vec<(Level, LevelReading)>, LevelError> {
        let mut levels = Vec::new();
        for path in group.path().parents() {
            let kind = if path == *pod { LevelKind::Pod } else { LevelKind::Parent };
            let above = Cgroup::new(group.shared_layout(), path);
            let reading = self.once(above.path().as_str(), || read_files(&above, above.path()))?;
            levels.push((level(kind, above.path()), reading));
        }
        let root = Level { kind: LevelKind::Root, cgroup: "/".to_owned() };
        let read = |knob: &Knob| {
            let mount = group.layout().mount_of(knob.controller()).ok_or(io::ErrorKind::NotFound)?;
            read_once(&mount.join(knob.file()), None)
        };
        let reading = self.once("/", || read_level(group.layout().version(), "/", &read))?;
        levels.push((root, reading));
        Ok(levels)
    }

    fn once(
        &mut self,
        name: &str,
        read: impl FnOnce() -> Result<LevelReading, LevelError>,
    ) -> Result<LevelReading, LevelError> {
        if let Some(known) = self.0.get(name) {
            return Ok(known.clone());
        }
        let reading = read()?;
        self.0.insert(name.to_owned(), reading.clone());
        Ok(reading)
    }
}

fn level(kind: LevelKind, cgroup: &CgroupPath) -> Level {
    Level { kind, cgroup: cgroup.as_str().to_owned() }
}

/// Reads one level from `fs`.
pub(crate) fn read_files(fs: &impl CgroupFs, cgroup: &CgroupPath) -> Result<LevelReading, LevelError> {
    read_level(fs.version(), cgroup.as_str(), &|knob| fs.read(knob))
}

/// Reads one level by `read`, which returns the content of a file.
fn read_level(
    version: Version,
    cgroup: &str,
    read: &dyn Fn(&Knob) -> io::Result<String>,
) -> Result<LevelReading, LevelError> {
    let files = LevelFiles { cgroup, read };
    let mut reading = match version {
        Version::V1 => files.v1()?,
        Version::V2 => files.v2()?,
    };
    reading.pids = files.number(&Knob::PIDS_MAX)?;
    if reading.pids.is_some() {
        reading.pids_used = files.count(&Knob::PIDS_CURRENT)?;
    }
    Ok(reading)
}

/// The files of one level.
struct LevelFiles<'a> {
    cgroup: &'a str,
    read: &'a dyn Fn(&Knob) -> io::Result<String>,
}

impl LevelFiles<'_> {
    fn v1(&self) -> Result<LevelReading, LevelError> {
        let (quota, period) = (self.number(&Knob::CFS_QUOTA)?, self.number(&Knob::CFS_PERIOD)?);
        let memory = self.bytes(&Knob::MEMORY_LIMIT)?;
        let hits = self.count(&Knob::MEMORY_FAILCNT)?;
        // If swap has a limit too, a charge that fits neither is counted there alone.
        let with_swap = self.count(&Knob::MEMSW_FAILCNT)?.unwrap_or(0);
        Ok(LevelReading {
            cpu: quota.zip(period).map(nano_cpus),
            memory,
            working_set: self.working_set(memory, &Knob::MEMORY_USAGE, "total_inactive_file")?,
            cpus: self.cpus(&Knob::CPUSET_EFFECTIVE_V1)?,
            memory_hits: hits.map(|hits| hits.saturating_add(with_swap)),
            ..LevelReading::default()
        })
    }

    fn v2(&self) -> Result<LevelReading, LevelError> {
        let cpu = match self.text(&Knob::CPU_MAX)? {
            None => None,
            Some(text) => match Knob::CPU_MAX.value(text).value() {
                Value::Bandwidth { quota, period: Some(period) } => quota.map(|quota| nano_cpus((quota, *period))),
                _ => None,
            },
        };
        let memory = self.bytes(&Knob::MEMORY_MAX)?;
        let events = self.text(&Knob::MEMORY_EVENTS_LOCAL)?;
        Ok(LevelReading {
            cpu,
            memory,
            working_set: self.working_set(memory, &Knob::MEMORY_CURRENT, "inactive_file")?,
            cpus: self.cpus(&Knob::CPUSET_EFFECTIVE_V2)?,
            memory_hits: events.and_then(|text| keyed(&text, ["max"])[0]),
            ..LevelReading::default()
        })
    }

    /// The usage without inactive page cache, of a level that has a limit.
    fn working_set(&self, limit: Option<u64>, usage: &Knob, inactive: &str) -> Result<Option<u64>, LevelError> {
        if limit.is_none() {
            return Ok(None);
        }
        let Some(usage) = self.count(usage)? else { return Ok(None) };
        let stat = self.text(&Knob::MEMORY_STAT)?.unwrap_or_default();
        let [inactive] = keyed(&stat, [inactive]);
        Ok(Some(working_set(usage, inactive)))
    }

    fn text(&self, knob: &Knob) -> Result<Option<String>, LevelError> {
        match (self.read)(knob) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound || absent(&e) => Ok(None),
            Err(source) => Err(LevelError::Read { cgroup: self.cgroup.to_owned(), knob: knob.clone(), source }),
        }
    }

    fn bytes(&self, knob: &Knob) -> Result<Option<u64>, LevelError> {
        let Some(text) = self.text(knob)? else { return Ok(None) };
        Ok(knob.limit(&knob.value(text)).map_err(|source| self.unreadable(source))?.map(|limit| limit.0))
    }

    fn number(&self, knob: &Knob) -> Result<Option<u64>, LevelError> {
        let Some(text) = self.text(knob)? else { return Ok(None) };
        knob.number(&knob.value(text)).map_err(|source| self.unreadable(source))
    }

    /// A number, of a file without a form of its own.
    fn count(&self, knob: &Knob) -> Result<Option<u64>, LevelError> {
        Ok(self.text(knob)?.and_then(|text| text.trim().parse().ok()))
    }

    fn cpus(&self, knob: &Knob) -> Result<Option<CpuSet>, LevelError> {
        Ok(self.text(knob)?.and_then(|text| CpuSet::new(&text).ok()))
    }

    fn unreadable(&self, source: Unreadable) -> LevelError {
        LevelError::Unreadable { cgroup: self.cgroup.to_owned(), source }
    }
}

fn nano_cpus((quota, period): (u64, u64)) -> u64 {
    u64::try_from(u128::from(quota) * 1_000_000_000 / u128::from(period.max(1))).unwrap_or(u64::MAX)
}
