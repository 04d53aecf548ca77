//! Reads CPU, memory, block I/O and task counters of cgroup v2.

use model::metrics::{CpuCounters, DeviceIo, MemoryCounters};
use model::stats::{MemoryUsage, SwapUsage};

use super::read::{ReadBuffer, ReadError, keyed};
use super::v1::device_number;
use super::{CpuSample, MemorySample, left, limit, working_set};
use crate::cgroup::Cgroup;
use crate::limits::knob::Knob;

pub(super) fn cpu(group: &Cgroup, scratch: &mut ReadBuffer) -> Result<CpuSample, ReadError> {
    let Some(dir) = group.unified_dir() else { return Ok(CpuSample::default()) };
    Ok(scratch.text(&dir, "cpu.stat")?.map(cpu_times).unwrap_or_default())
}

/// The kernel's microseconds as nanoseconds.
pub(super) fn cpu_times(stat: &str) -> CpuSample {
    let keys = ["usage_usec", "user_usec", "system_usec", "nr_periods", "nr_throttled", "throttled_usec"];
    let [used, user, system, periods, throttled_periods, throttled] = keyed(stat, keys);
    let nanos = |micros: Option<u64>| micros.and_then(|micros| micros.checked_mul(1000));
    let besides = CpuCounters {
        user: nanos(user),
        system: nanos(system),
        periods,
        throttled_periods,
        throttled: nanos(throttled),
    };
    CpuSample { used: nanos(used), besides }
}

pub(super) fn memory(group: &Cgroup, scratch: &mut ReadBuffer) -> Result<Option<MemorySample>, ReadError> {
    let Some(dir) = group.unified_dir() else { return Ok(None) };
    let Some(usage) = scratch.number(&dir, "memory.current")? else { return Ok(None) };
    let keys = ["anon", "inactive_file", "pgfault", "pgmajfault", "file", "file_mapped", "kernel"];
    let stat = scratch.text(&dir, "memory.stat")?.map(|text| keyed(text, keys));
    let [rss, inactive_file, page_faults, major_page_faults, cache, mapped, kernel] = stat.unwrap_or_default();
    let (memory_max, swap_max) = (limit(&Knob::MEMORY_MAX, &dir, scratch)?, limit(&Knob::SWAP_MAX, &dir, scratch)?);
    let working_set = working_set(usage, inactive_file);
    let available = left(memory_max, working_set);
    let usage = MemoryUsage { usage, working_set, available, rss, page_faults, major_page_faults };
    let swap = scratch.number(&dir, "memory.swap.current")?;
    let swap = swap.map(|usage| SwapUsage { usage, available: left(swap_max, usage) });
    let besides = MemoryCounters {
        cache,
        mapped,
        kernel,
        own_page_faults: page_faults,
        own_major_page_faults: major_page_faults,
        ..MemoryCounters::default()
    };
    Ok(Some(MemorySample { usage, swap, besides }))
}

/// Counters of memory in separate files.
pub(super) fn more_of_memory(
    group: &Cgroup,
    scratch: &mut ReadBuffer,
    counters: &mut MemoryCounters,
) -> Result<(), ReadError> {
    let Some(dir) = group.unified_dir() else { return Ok(()) };
    counters.peak = scratch.number(&dir, "memory.peak")?;
    let events = scratch.text(&dir, "memory.events")?.map(|text| keyed(text, ["max", "oom_kill"]));
    [counters.limit_hits, counters.oom_kills] = events.unwrap_or_default();
    counters.reserved = scratch.number(&dir, "memory.min")?;
    Ok(())
}

/// Bytes and operations of each device: lines such as `8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0`.
pub(super) fn io(group: &Cgroup, scratch: &mut ReadBuffer) -> Result<Vec<DeviceIo>, ReadError> {
    let Some(dir) = group.unified_dir() else { return Ok(Vec::new()) };
    let text = scratch.text(&dir, "io.stat")?.unwrap_or_default();
    Ok(text.lines().filter_map(device).collect())
}

fn device(line: &str) -> Option<DeviceIo> {
    let mut words = line.split(' ');
    let (major, minor) = words.next().and_then(device_number)?;
    let mut device = DeviceIo { major, minor, ..DeviceIo::default() };
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        let value = value.parse().ok();
        match key {
            "rbytes" => device.read_bytes = value,
            "wbytes" => device.write_bytes = value,
            "dbytes" => device.discard_bytes = value,
            "rios" => device.reads = value,
            "wios" => device.writes = value,
            _ => {}
        }
    }
    // The kernel lists some devices without counters.
    (device.read_bytes.is_some() || device.write_bytes.is_some()).then_some(device)
}
