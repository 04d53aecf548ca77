//! The memory that a cgroup was allowed and the most that it used, for the log line of a container's end.

use model::metrics::MemoryCounters;

use super::read::{ReadBuffer, ReadError};
use super::{limit, v1, v2};
use crate::cgroup::Cgroup;
use crate::layout::Version;
use crate::limits::knob::Knob;

/// Sizes in bytes. A value that the kernel does not have is absent, as is a limit that is not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryExtent {
    pub limit: Option<u64>,
    pub peak: Option<u64>,
    pub oom_kills: Option<u64>,
}

impl Cgroup {
    /// Returns limit, peak and OOM kills of this cgroup; nothing if it does not exist.
    pub fn memory_extent(&self, scratch: &mut ReadBuffer) -> Result<MemoryExtent, ReadError> {
        scratch.turn_to(self.file_cache());
        let mut counters = MemoryCounters::default();
        let (dir, knob) = match self.layout().version() {
            Version::V1 => {
                v1::more_of_memory(self, scratch, &mut counters)?;
                (self.dir_of("memory"), &Knob::MEMORY_LIMIT)
            }
            Version::V2 => {
                v2::more_of_memory(self, scratch, &mut counters)?;
                (self.unified_dir(), &Knob::MEMORY_MAX)
            }
        };
        let limit = match dir {
            Some(dir) => limit(knob, &dir, scratch)?,
            None => None,
        };
        Ok(MemoryExtent { limit, peak: counters.peak, oom_kills: counters.oom_kills })
    }
}
