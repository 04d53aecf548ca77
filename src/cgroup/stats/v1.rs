//! The files of v1 controllers.

use model::stats::{MemoryUsage, SwapUsage};

use super::read::{ReadError, Scratch, keyed};
use super::{left, limit, working_set};
use crate::group::Cgroup;
use crate::knob::{Knob, NO_LIMIT};

pub(super) fn cpu(group: &Cgroup, scratch: &mut Scratch) -> Result<Option<u64>, ReadError> {
    let Some(dir) = group.dir_of("cpuacct") else { return Ok(None) };
    scratch.number(&dir, "cpuacct.usage")
}

/// What `memory.stat` says of a cgroup with all below it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) inactive_file: Option<u64>,
    pub(super) rss: Option<u64>,
    pub(super) page_faults: Option<u64>,
    pub(super) major_page_faults: Option<u64>,
    /// Only where the kernel counts swap for each cgroup.
    pub(super) swap: Option<u64>,
    /// Whether this cgroup or one above it has a limit, so that it is worth asking for its own.
    pub(super) limited: bool,
    /// The same for memory and swap together.
    pub(super) swap_limited: bool,
}

pub(super) fn stat(text: &str) -> Stat {
    let [inactive_file, rss, page_faults, major_page_faults, swap, memory_limit, swap_limit] = keyed(
        text,
        [
            "total_inactive_file",
            "total_rss",
            "total_pgfault",
            "total_pgmajfault",
            "total_swap",
            "hierarchical_memory_limit",
            "hierarchical_memsw_limit",
        ],
    );
    let limited = |lowest: Option<u64>| lowest.is_none_or(|limit| limit < NO_LIMIT);
    Stat {
        inactive_file,
        rss,
        page_faults,
        major_page_faults,
        swap,
        limited: limited(memory_limit),
        swap_limited: limited(swap_limit),
    }
}

pub(super) fn memory(
    group: &Cgroup,
    scratch: &mut Scratch,
) -> Result<(Option<MemoryUsage>, Option<SwapUsage>), ReadError> {
    let Some(dir) = group.dir_of("memory") else { return Ok((None, None)) };
    let Some(usage) = scratch.number(&dir, "memory.usage_in_bytes")? else { return Ok((None, None)) };
    let found = scratch.text(&dir, "memory.stat")?.map_or_else(|| stat(""), stat);
    let memory_limit = if found.limited { limit(&Knob::MEMORY_LIMIT, &dir, scratch)? } else { None };
    let working_set = working_set(usage, found.inactive_file);
    let memory = MemoryUsage {
        usage,
        working_set,
        available: left(memory_limit, working_set),
        rss: found.rss,
        page_faults: found.page_faults,
        major_page_faults: found.major_page_faults,
    };
    let Some(swapped) = found.swap else { return Ok((Some(memory), None)) };
    let both = if found.swap_limited { limit(&Knob::MEMSW_LIMIT, &dir, scratch)? } else { None };
    let available = left(swap_limit(both, memory_limit), swapped);
    Ok((Some(memory), Some(SwapUsage { usage: swapped, available })))
}

/// v1 limits memory and swap together: swap alone may take what the limit of memory leaves of that.
fn swap_limit(both: Option<u64>, memory: Option<u64>) -> Option<u64> {
    // Without a limit of memory all of it could be in swap.
    both.map(|both| both.saturating_sub(memory.unwrap_or(0)))
}
