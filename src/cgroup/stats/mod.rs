//! Usage of a cgroup, read from the kernel's files of v1 and v2.
//!
//! ```text
//!              v1                                          v2
//! processor    cpuacct.usage                               cpu.stat
//! memory       memory.usage_in_bytes, memory.stat          memory.current, memory.stat
//! limits       memory.limit_in_bytes, memory.memsw.limit…  memory.max, memory.swap.max
//! swap         memory.stat                                 memory.swap.current
//! tasks        pids.current                                pids.current
//! pressure     *.pressure in the v2 tree of a hybrid host  *.pressure
//!
//! and for metrics, besides:
//! processor    cpuacct.usage_{user,sys}, cpu.stat          cpu.stat
//! memory       memory.max_usage_in_bytes, memory.*failcnt,  memory.peak, memory.events,
//!              memory.kmem.usage…, memory.soft_limit…,     memory.stat, memory.min,
//!              memory.oom_control
//! disks        blkio.throttle.io_service*_recursive        io.stat
//! huge pages   hugetlb.SIZE.{usage,max_usage}_in_bytes     hugetlb.SIZE.current
//! tasks        pids.max                                    pids.max
//! ```
//! Values of missing files are absent. All numbers include the descendants of the cgroup.

mod counters;
#[cfg(test)]
mod counters_tests;
mod extent;
mod memory_above;
mod pressure;
mod read;
mod tasks;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

use std::path::Path;
use std::time::SystemTime;

use model::metrics::{CpuCounters, MemoryCounters};
use model::stats::{GroupUsage, MemoryUsage, Pressure, SwapUsage, TaskCount};

pub use extent::MemoryExtent;
pub use memory_above::MemoryAbove;
pub use read::{ReadBuffer, ReadError};
pub(crate) use read::{absent, keyed};

use crate::cgroup::Cgroup;
use crate::layout::Version;
use crate::limits::knob::Knob;

/// One read of the files of [`Cgroup::usage`], with the other values of the same files.
struct Sample {
    usage: GroupUsage,
    cpu: CpuCounters,
    memory: MemoryCounters,
}

/// CPU time.
#[derive(Default)]
struct CpuSample {
    used: Option<u64>,
    besides: CpuCounters,
}

/// Memory.
struct MemorySample {
    usage: MemoryUsage,
    swap: Option<SwapUsage>,
    besides: MemoryCounters,
}

impl Cgroup {
    /// Returns the usage of this cgroup and its descendants; `None` if it does not exist.
    ///
    /// Takes no lock and does not block. `scratch` is the buffer: all cgroups of a list use the
    /// same one.
    pub fn usage(&self, scratch: &mut ReadBuffer) -> Result<Option<GroupUsage>, ReadError> {
        Ok(self.look(scratch)?.map(|look| look.usage))
    }

    fn look(&self, scratch: &mut ReadBuffer) -> Result<Option<Sample>, ReadError> {
        scratch.turn_to(self.file_cache());
        let at = SystemTime::now();
        let (cpu, memory) = match self.layout().version() {
            Version::V1 => (v1::cpu(self, scratch)?, v1::memory(self, scratch)?),
            Version::V2 => (v2::cpu(self, scratch)?, v2::memory(self, scratch)?),
        };
        // Removed between two reads: half a reading would show no memory.
        if (cpu.used.is_none() || memory.is_none()) && !self.exists() {
            return Ok(None);
        }
        let usage = GroupUsage {
            at,
            cpu: cpu.used,
            memory: memory.as_ref().map(|memory| memory.usage),
            swap: memory.as_ref().and_then(|memory| memory.swap),
            cpu_pressure: self.pressure("cpu.pressure", scratch)?,
            memory_pressure: self.pressure("memory.pressure", scratch)?,
            io_pressure: self.pressure("io.pressure", scratch)?,
        };
        let memory = memory.map_or_else(MemoryCounters::default, |memory| memory.besides);
        Ok(Some(Sample { usage, cpu: cpu.besides, memory }))
    }

    /// Returns the number of tasks in this cgroup and its descendants; `None` if the kernel does not count them.
    pub fn tasks(&self, scratch: &mut ReadBuffer) -> Result<Option<TaskCount>, ReadError> {
        let Some(dir) = self.dir_of("pids") else { return Ok(None) };
        scratch.turn_to(self.file_cache());
        let at = SystemTime::now();
        Ok(scratch.number(&dir, "pids.current")?.map(|count| TaskCount { at, count }))
    }

    /// v1 has no such files, but the v2 tree of a hybrid host has the same processes and does.
    fn pressure(&self, file: &str, scratch: &mut ReadBuffer) -> Result<Option<Pressure>, ReadError> {
        let Some(dir) = self.unified_dir() else { return Ok(None) };
        Ok(scratch.text(&dir, file)?.and_then(pressure::parse))
    }
}

/// The usage without memory that the kernel can reclaim at once.
pub(crate) fn working_set(usage: u64, inactive_file: Option<u64>) -> u64 {
    // The two are read one after the other, so one may exceed the other.
    usage.saturating_sub(inactive_file.unwrap_or(0))
}

/// The cgroup's own limit in bytes; those of its ancestors may be lower.
fn limit(knob: &Knob, dir: &Path, scratch: &mut ReadBuffer) -> Result<Option<u64>, ReadError> {
    let text = scratch.text(dir, knob.file())?;
    Ok(text.and_then(|text| knob.value(text).limit().flatten()).map(|limit| limit.0))
}

/// Returns the memory left below a limit; a lowered limit may be below the usage.
fn left(limit: Option<u64>, used: u64) -> Option<u64> {
    limit.map(|limit| limit.saturating_sub(used))
}
