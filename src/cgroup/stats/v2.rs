//! The files of v2 controllers.

use model::stats::{MemoryUsage, SwapUsage};

use super::read::{ReadError, Scratch, keyed};
use super::{left, limit, working_set};
use crate::group::Cgroup;
use crate::knob::Knob;

pub(super) fn cpu(group: &Cgroup, scratch: &mut Scratch) -> Result<Option<u64>, ReadError> {
    let Some(dir) = group.unified_dir() else { return Ok(None) };
    Ok(scratch.text(&dir, "cpu.stat")?.and_then(cpu_time))
}

/// The kernel's microseconds as nanoseconds.
pub(super) fn cpu_time(stat: &str) -> Option<u64> {
    let [usage] = keyed(stat, ["usage_usec"]);
    usage?.checked_mul(1000)
}

pub(super) fn memory(
    group: &Cgroup,
    scratch: &mut Scratch,
) -> Result<(Option<MemoryUsage>, Option<SwapUsage>), ReadError> {
    let Some(dir) = group.unified_dir() else { return Ok((None, None)) };
    let Some(usage) = scratch.number(&dir, "memory.current")? else { return Ok((None, None)) };
    let keys = ["anon", "inactive_file", "pgfault", "pgmajfault"];
    let stat = scratch.text(&dir, "memory.stat")?.map(|text| keyed(text, keys));
    let [rss, inactive_file, page_faults, major_page_faults] = stat.unwrap_or_default();
    let (memory_max, swap_max) = (limit(&Knob::MEMORY_MAX, &dir, scratch)?, limit(&Knob::SWAP_MAX, &dir, scratch)?);
    let working_set = working_set(usage, inactive_file);
    let available = left(memory_max, working_set);
    let memory = MemoryUsage { usage, working_set, available, rss, page_faults, major_page_faults };
    let swap = scratch.number(&dir, "memory.swap.current")?;
    Ok((Some(memory), swap.map(|usage| SwapUsage { usage, available: left(swap_max, usage) })))
}
