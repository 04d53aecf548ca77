//! Measures how much page cache a cgroup can do without: reclaims a little at a time and counts what is read back.
//!
//! Needs `memory.reclaim` of cgroup v2. It changes no limit, but moves page cache out, which costs the container disk
//! reads if it still needs it. It stops at the first of: most of a step is read back, nothing more is reclaimed, all
//! that was reclaimable is gone, the time is over.

use std::time::{Duration, Instant};
use std::{io, thread};

use model::{ErrorClass, ErrorKind};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{ForecastError, forecast, text};
use crate::layout::Version;
use crate::limits::knob::{CgroupFs, Knob, page};
use crate::stats::keyed;

/// A step is this part of the usage, within bounds.
const STEP_PART: u64 = 64;
const STEP_MIN: u64 = 1 << 20;
const STEP_MAX: u64 = 64 << 20;

/// Bounds of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeLimits {
    pub within: Duration,
    /// The time between two steps, in which processes may read memory back.
    pub pause: Duration,
}

impl Default for ProbeLimits {
    fn default() -> Self {
        Self { within: Duration::from_secs(3), pause: Duration::from_millis(100) }
    }
}

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The decrease of the usage, in bytes.
    pub reclaimed: u64,
    /// Memory that was read back after it had been reclaimed, in bytes.
    pub refaulted: u64,
    pub refaulted_per_second: u64,
    pub milliseconds: u64,
    /// The usage at the end.
    pub usage: u64,
    pub ended: ProbeEnd,
}

/// Why a probe ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeEnd {
    /// More than half of a step was read back: the rest is in use.
    Refaults,
    /// The kernel reclaimed less than a quarter of each of two steps.
    NothingMore,
    /// All memory was reclaimed that the forecast had as reclaimable.
    AllReclaimed,
    Deadline,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("probing memory needs {}, which cgroup v1 and kernels before 5.19 do not have", Knob::MEMORY_RECLAIM)]
    Unsupported,
    #[error("probing memory: writing to the cgroup file {file} to reclaim page cache")]
    Reclaim { file: std::path::PathBuf, source: io::Error },
    #[error(transparent)]
    Read(#[from] ForecastError),
}

impl ErrorClass for ProbeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unsupported => ErrorKind::Unsupported,
            Self::Reclaim { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            Self::Reclaim { .. } => ErrorKind::Internal,
            Self::Read(error) => error.kind(),
        }
    }
}

/// Reclaims memory in small steps, and returns how much of it was read back.
pub fn probe(fs: &impl CgroupFs, limits: ProbeLimits) -> Result<Probe, ProbeError> {
    if fs.version() == Version::V1 {
        return Err(ProbeError::Unsupported);
    }
    let (begin, before, refaults_before) = (Instant::now(), forecast(fs)?, refaulted(fs)?);
    let (mut now, mut refaults, mut idle) = (before, refaults_before, 0);
    let ended = loop {
        if begin.elapsed() >= limits.within {
            break ProbeEnd::Deadline;
        }
        let left = before.reclaimable.saturating_sub(before.usage.saturating_sub(now.usage));
        let step = (now.usage / STEP_PART).clamp(STEP_MIN, STEP_MAX).min(left) / page() * page();
        if step == 0 {
            break ProbeEnd::AllReclaimed;
        }
        reclaim(fs, step)?;
        thread::sleep(limits.pause.min(limits.within.saturating_sub(begin.elapsed())));
        let (usage, read_back) = (now.usage, refaults);
        (now, refaults) = (forecast(fs)?, refaulted(fs)?);
        if refaults.saturating_sub(read_back) > step / 2 {
            break ProbeEnd::Refaults;
        }
        idle = if usage.saturating_sub(now.usage) < step / 4 { idle + 1 } else { 0 };
        if idle == 2 {
            break ProbeEnd::NothingMore;
        }
    };
    let refaulted = refaults.saturating_sub(refaults_before);
    let milliseconds = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Probe {
        reclaimed: before.usage.saturating_sub(now.usage),
        refaulted,
        refaulted_per_second: refaulted.saturating_mul(1000) / milliseconds.max(1),
        milliseconds,
        usage: now.usage,
        ended,
    })
}

fn reclaim(fs: &impl CgroupFs, bytes: u64) -> Result<(), ProbeError> {
    match fs.write(&Knob::MEMORY_RECLAIM, &bytes.to_string()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(ProbeError::Unsupported),
        // Less than requested was reclaimed.
        Err(e) if Errno::from_io_error(&e) == Some(Errno::AGAIN) => Ok(()),
        Err(source) => Err(ProbeError::Reclaim { file: fs.location(&Knob::MEMORY_RECLAIM), source }),
    }
}

/// Bytes that were read back since the cgroup was created.
fn refaulted(fs: &impl CgroupFs) -> Result<u64, ForecastError> {
    let stat = text(fs, &Knob::MEMORY_STAT)?.unwrap_or_default();
    let pages = keyed(&stat, ["workingset_refault_file", "workingset_refault_anon"]);
    Ok(pages.into_iter().flatten().sum::<u64>().saturating_mul(page()))
}
