//! Reads CPU, memory, block I/O and task counters of cgroup v1.

use std::path::Path;

use model::metrics::{CpuCounters, DeviceIo, MemoryCounters};
use model::stats::{MemoryUsage, SwapUsage};

use super::read::{ReadBuffer, ReadError, keyed};
use super::{CpuSample, MemorySample, left, limit, working_set};
use crate::cgroup::Cgroup;
use crate::limits::knob::Knob;
use crate::limits::value::NO_LIMIT;

pub(super) fn cpu(group: &Cgroup, scratch: &mut ReadBuffer) -> Result<CpuSample, ReadError> {
    let Some(dir) = group.dir_of("cpuacct") else { return Ok(CpuSample::default()) };
    Ok(CpuSample { used: scratch.number(&dir, "cpuacct.usage")?, besides: CpuCounters::default() })
}

/// Values that [`cpu`] does not need.
pub(super) fn more_of_cpu(
    group: &Cgroup,
    scratch: &mut ReadBuffer,
    counters: &mut CpuCounters,
) -> Result<(), ReadError> {
    if let Some(dir) = group.dir_of("cpuacct") {
        counters.user = scratch.number(&dir, "cpuacct.usage_user")?;
        counters.system = scratch.number(&dir, "cpuacct.usage_sys")?;
    }
    if let Some(dir) = group.dir_of("cpu") {
        let keys = ["nr_periods", "nr_throttled", "throttled_time"];
        let stat = scratch.text(&dir, "cpu.stat")?.map(|text| keyed(text, keys));
        [counters.periods, counters.throttled_periods, counters.throttled] = stat.unwrap_or_default();
    }
    Ok(())
}

/// Counters of memory in separate files.
pub(super) fn more_of_memory(
    group: &Cgroup,
    scratch: &mut ReadBuffer,
    counters: &mut MemoryCounters,
) -> Result<(), ReadError> {
    let Some(dir) = group.dir_of("memory") else { return Ok(()) };
    counters.peak = scratch.number(&dir, "memory.max_usage_in_bytes")?;
    // If swap has a limit too, a charge that exceeds both is counted there alone.
    let with_swap = scratch.number(&dir, "memory.memsw.failcnt")?.unwrap_or(0);
    counters.limit_hits = scratch.number(&dir, "memory.failcnt")?.map(|alone| alone.saturating_add(with_swap));
    counters.kernel = scratch.number(&dir, "memory.kmem.usage_in_bytes")?;
    let reserved = scratch.number(&dir, "memory.soft_limit_in_bytes")?;
    counters.reserved = reserved.map(|bytes| if bytes < NO_LIMIT { bytes } else { 0 });
    [counters.oom_kills] =
        scratch.text(&dir, "memory.oom_control")?.map(|text| keyed(text, ["oom_kill"])).unwrap_or_default();
    Ok(())
}

/// Bytes and operations of each device.
pub(super) fn io(group: &Cgroup, scratch: &mut ReadBuffer) -> Result<Vec<DeviceIo>, ReadError> {
    let Some(dir) = group.dir_of("blkio") else { return Ok(Vec::new()) };
    let mut devices = Vec::new();
    // The throttling layer counts every request, with any I/O scheduler or none.
    operations(&dir, "blkio.throttle.io_service_bytes_recursive", scratch, |major, minor, operation, bytes| {
        let device = device(&mut devices, major, minor);
        match operation {
            "Read" => device.read_bytes = Some(bytes),
            "Write" => device.write_bytes = Some(bytes),
            "Discard" => device.discard_bytes = Some(bytes),
            _ => {}
        }
    })?;
    operations(&dir, "blkio.throttle.io_serviced_recursive", scratch, |major, minor, operation, count| {
        let device = device(&mut devices, major, minor);
        match operation {
            "Read" => device.reads = Some(count),
            "Write" => device.writes = Some(count),
            _ => {}
        }
    })?;
    Ok(devices)
}

/// Lines such as `8:0 Read 4096`; the sum at the end is skipped.
fn operations(
    dir: &Path,
    file: &str,
    scratch: &mut ReadBuffer,
    mut take: impl FnMut(u32, u32, &str, u64),
) -> Result<(), ReadError> {
    for line in scratch.text(dir, file)?.unwrap_or_default().lines() {
        let mut words = line.split(' ');
        let device = words.next().and_then(device_number);
        if let (Some((major, minor)), Some(operation), Some(Ok(value))) =
            (device, words.next(), words.next().map(str::parse))
        {
            take(major, minor, operation, value);
        }
    }
    Ok(())
}

fn device(devices: &mut Vec<DeviceIo>, major: u32, minor: u32) -> &mut DeviceIo {
    let known = devices.iter().position(|device| (device.major, device.minor) == (major, minor));
    let index = known.unwrap_or_else(|| {
        devices.push(DeviceIo { major, minor, ..DeviceIo::default() });
        devices.len() - 1
    });
    &mut devices[index]
}

/// `8:0`
pub(super) fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Values of `memory.stat` for a cgroup with its descendants.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) inactive_file: Option<u64>,
    pub(super) rss: Option<u64>,
    pub(super) page_faults: Option<u64>,
    pub(super) major_page_faults: Option<u64>,
    /// Only where the kernel counts swap for each cgroup.
    pub(super) swap: Option<u64>,
    /// Whether this cgroup or one above it has a limit, so that reading its own is useful.
    pub(super) limited: bool,
    /// The same for memory and swap together.
    pub(super) swap_limited: bool,
    /// Values that only metrics have.
    pub(super) besides: MemoryCounters,
}

pub(super) fn stat(text: &str) -> Stat {
    let [own_page_faults, own_major_page_faults, cache, mapped, values @ ..] = keyed(
        text,
        [
            "pgfault",
            "pgmajfault",
            "total_cache",
            "total_mapped_file",
            "total_inactive_file",
            "total_rss",
            "total_pgfault",
            "total_pgmajfault",
            "total_swap",
            "hierarchical_memory_limit",
            "hierarchical_memsw_limit",
        ],
    );
    let [inactive_file, rss, page_faults, major_page_faults, swap, memory_limit, swap_limit] = values;
    let limited = |lowest: Option<u64>| lowest.is_none_or(|limit| limit < NO_LIMIT);
    Stat {
        inactive_file,
        rss,
        page_faults,
        major_page_faults,
        swap,
        limited: limited(memory_limit),
        swap_limited: limited(swap_limit),
        besides: MemoryCounters { cache, mapped, own_page_faults, own_major_page_faults, ..MemoryCounters::default() },
    }
}

pub(super) fn memory(group: &Cgroup, scratch: &mut ReadBuffer) -> Result<Option<MemorySample>, ReadError> {
    let Some(dir) = group.dir_of("memory") else { return Ok(None) };
    let Some(usage) = scratch.number(&dir, "memory.usage_in_bytes")? else { return Ok(None) };
    let found = scratch.text(&dir, "memory.stat")?.map_or_else(|| stat(""), stat);
    let memory_limit = if found.limited { limit(&Knob::MEMORY_LIMIT, &dir, scratch)? } else { None };
    let working_set = working_set(usage, found.inactive_file);
    let usage = MemoryUsage {
        usage,
        working_set,
        available: left(memory_limit, working_set),
        rss: found.rss,
        page_faults: found.page_faults,
        major_page_faults: found.major_page_faults,
    };
    let besides = found.besides;
    let Some(swapped) = found.swap else { return Ok(Some(MemorySample { usage, swap: None, besides })) };
    let both = if found.swap_limited { limit(&Knob::MEMSW_LIMIT, &dir, scratch)? } else { None };
    let available = left(swap_limit(both, memory_limit), swapped);
    Ok(Some(MemorySample { usage, swap: Some(SwapUsage { usage: swapped, available }), besides }))
}

/// v1 limits memory and swap together: swap can use the part that the memory limit leaves.
fn swap_limit(both: Option<u64>, memory: Option<u64>) -> Option<u64> {
    // Without a memory limit all of it could be in swap.
    both.map(|both| both.saturating_sub(memory.unwrap_or(0)))
}
