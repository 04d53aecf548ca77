//! How far the memory limit of a cgroup can be lowered now, without a change.
//!
//! Page cache that is not locked can be reclaimed. Anonymous memory without swap, shared memory, locked pages and
//! memory of the kernel cannot; a limit below them is refused (`limits::memory_shrink`). Swap is not counted on, and
//! the kernel may free a part of its own memory too, so a lower limit than forecast can succeed.
//!
//! ```text
//!              v1                                              v2
//! usage        memory.usage_in_bytes                           memory.current
//! anonymous    total_rss                                       anon
//! unevictable  total_unevictable                               unevictable
//! kernel       memory.kmem.usage_in_bytes                      kernel
//! file         total_cache                                     file
//! reclaimable  total_active_file, total_inactive_file          active_file, inactive_file
//! ```

mod probe;

use std::io;
use std::path::PathBuf;

use model::{ErrorClass, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::layout::Version;
use crate::limits::knob::{CgroupFs, Knob, page};
use crate::stats::{absent, keyed};

pub use probe::{Probe, ProbeEnd, ProbeError, ProbeLimits, probe};

/// Memory of a cgroup by its kind, and the limit that fits it, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShrinkForecast {
    /// The memory that counts against the limit.
    pub usage: u64,
    /// The cgroup's own limit; `None` if it has none.
    pub limit: Option<u64>,
    pub anonymous: u64,
    /// Locked memory, which is also anonymous or file memory.
    pub unevictable: u64,
    /// Memory of the kernel, such as page tables and sockets.
    pub kernel: u64,
    /// Page cache and shared memory.
    pub file: u64,
    /// Page cache that the kernel can drop or write back.
    pub reclaimable: u64,
    /// The smallest limit that would be accepted now: the usage without reclaimable memory, in whole pages.
    pub smallest_limit: u64,
}

/// Why there is no forecast.
#[derive(Debug, thiserror::Error)]
pub enum ForecastError {
    #[error("reading the cgroup file {file} for a memory forecast")]
    Read { file: PathBuf, source: io::Error },
    #[error("cannot forecast memory: {0} does not exist, expected a cgroup with the memory controller")]
    Gone(PathBuf),
}

impl ErrorClass for ForecastError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { .. } => ErrorKind::Internal,
            Self::Gone(_) => ErrorKind::NotFound,
        }
    }
}

/// Reads the memory of one cgroup, with all below it.
pub fn forecast(fs: &impl CgroupFs) -> Result<ShrinkForecast, ForecastError> {
    let (usage_file, limit_file) = match fs.version() {
        Version::V1 => (Knob::MEMORY_USAGE, Knob::MEMORY_LIMIT),
        Version::V2 => (Knob::MEMORY_CURRENT, Knob::MEMORY_MAX),
    };
    let gone = || ForecastError::Gone(fs.location(&usage_file));
    let usage = number(fs, &usage_file)?.ok_or_else(gone)?;
    let limit = text(fs, &limit_file)?.and_then(|text| limit_file.value(text).limit().flatten()).map(|limit| limit.0);
    let stat = text(fs, &Knob::MEMORY_STAT)?.ok_or_else(gone)?;
    let keys = match fs.version() {
        Version::V1 => [
            "total_rss",
            "total_unevictable",
            "total_cache",
            "total_active_file",
            "total_inactive_file",
            // Not in this file.
            "",
        ],
        Version::V2 => ["anon", "unevictable", "file", "active_file", "inactive_file", "kernel"],
    };
    let [anonymous, unevictable, file, active, inactive, kernel] = keyed(&stat, keys);
    let [anonymous, unevictable, file] = [anonymous, unevictable, file].map(Option::unwrap_or_default);
    let kernel = match (kernel, fs.version()) {
        (Some(kernel), _) => Some(kernel),
        (None, Version::V1) => number(fs, &Knob::KERNEL_USAGE)?,
        (None, Version::V2) => None,
    };
    // The counters are not read at one moment, and the kernel adds those of memory.stat up with a delay.
    let reclaimable = active.unwrap_or_default().saturating_add(inactive.unwrap_or_default()).min(usage);
    Ok(ShrinkForecast {
        usage,
        limit,
        anonymous,
        unevictable,
        kernel: kernel.unwrap_or_else(|| usage.saturating_sub(anonymous).saturating_sub(file)),
        file,
        reclaimable,
        smallest_limit: (usage - reclaimable).next_multiple_of(page()),
    })
}

fn text(fs: &impl CgroupFs, knob: &Knob) -> Result<Option<String>, ForecastError> {
    match fs.read(knob) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound || absent(&e) => Ok(None),
        Err(source) => Err(ForecastError::Read { file: fs.location(knob), source }),
    }
}

fn number(fs: &impl CgroupFs, knob: &Knob) -> Result<Option<u64>, ForecastError> {
    Ok(text(fs, knob)?.and_then(|text| text.trim().parse().ok()))
}
