//! Lowers memory limits without an OOM kill.
//!
//! On v1 the kernel itself refuses a limit below what is in use, after it has tried to make room.
//! On v2 it takes any limit and kills until it fits. So there `memory.high`, which slows down and
//! never kills, goes to the new limit first; the kernel reclaims as much as it can, page cache
//! first; and only once everything fits is the limit itself written.

use std::time::{Duration, Instant};
use std::{io, thread};

use model::resources::Bytes;
use rustix::io::Errno;

use crate::layout::Version;
use crate::limits::knob::{CgroupFs, Knob, Unreadable, Values};
use crate::limits::plan::{Change, Write};

/// How long memory may take to be given back before its limit is lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShrinkTimeouts {
    /// At the most.
    pub within: Duration,
    /// Without any gain: what is dirty has to reach the disk before it can go.
    pub stalled: Duration,
}

impl Default for ShrinkTimeouts {
    fn default() -> Self {
        Self { within: Duration::from_secs(5), stalled: Duration::from_millis(400) }
    }
}

/// Between two tries that gain nothing.
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes of one reclaim request: the kernel does not observe the deadline during a request.
const PIECE: u64 = 64 << 20;

/// Why a limit was not lowered.
#[derive(Debug)]
pub(crate) enum ShrinkError {
    /// The memory in use does not fit, with the kernel's error if it was requested.
    BelowUsage {
        usage: Bytes,
        answer: Option<io::Error>,
    },
    Io(io::Error),
}

impl From<io::Error> for ShrinkError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Puts the slowing down around a lower limit that is below what is in use.
pub(crate) fn insert_memory_high_steps(change: &mut Change, now: &Values) -> Result<(), Unreadable> {
    let Some(first) = change.writes.first() else { return Ok(()) };
    let Some(limit) = first.lowered_memory() else { return Ok(()) };
    let value = |knob: &Knob| now.get(knob).map(|value| knob.limit(value)).transpose();
    let usage = value(&Knob::MEMORY_CURRENT)?.flatten();
    if usage.is_none_or(|usage| usage <= limit) {
        return Ok(());
    }
    let Some(high) = now.get(&Knob::MEMORY_HIGH) else { return Ok(()) };
    if Knob::MEMORY_HIGH.limit(high)?.is_some_and(|high| high <= limit) {
        return Ok(());
    }
    let down = Write { knob: Knob::MEMORY_HIGH, had: high.clone(), want: Knob::MEMORY_HIGH.value(limit.to_string()) };
    // Where the change is about it anyway, that later write is also the end of this.
    match change.writes.iter_mut().find(|write| write.knob == Knob::MEMORY_HIGH) {
        Some(later) => later.had.clone_from(&down.want),
        None => change.writes.insert(1, down.back()),
    }
    change.writes.insert(0, down);
    Ok(())
}

/// Whether a shrink certainly fails, so that processes are not throttled in vain.
///
/// Returns the usage then. Only memory that has nowhere to go counts: without swap that is what is not backed by files.
pub(crate) fn exceeds_reclaimable(fs: &impl CgroupFs, change: &Change) -> io::Result<Option<(Write, Bytes)>> {
    let [squeeze, lower, ..] = change.writes.as_slice() else { return Ok(None) };
    if squeeze.knob != Knob::MEMORY_HIGH || lower.knob != Knob::MEMORY_MAX {
        return Ok(None);
    }
    let swap = match fs.read(&Knob::SWAP_MAX) {
        Ok(value) => value.trim() != "0",
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(e) => return Err(e),
    };
    let stat = fs.read(&Knob::MEMORY_STAT)?;
    let of = |name: &str| field(&stat, name);
    let stays = if swap { of("unevictable") } else { (of("anon") + of("shmem")).max(of("unevictable")) };
    match lower.lowered_memory() {
        Some(limit) if stays > limit.0 => {
            let usage = fs.read(&Knob::MEMORY_CURRENT)?.trim().parse().unwrap_or(stays);
            Ok(Some((lower.clone(), Bytes(usage))))
        }
        Some(_) | None => Ok(None),
    }
}

fn field(stat: &str, name: &str) -> u64 {
    let mut pairs = stat.lines().filter_map(|line| line.split_once(' '));
    pairs.find(|(key, _)| *key == name).and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}

/// Makes a memory limit lower: waits for room, and writes only where there is enough.
pub(crate) fn lower(fs: &impl CgroupFs, write: &Write, limit: Bytes) -> Result<(), ShrinkError> {
    let mut waiting = Waiting::new(fs.shrink_timeouts());
    loop {
        let answer = match fs.version() {
            // The kernel reclaims by itself, and returns an error if that is not enough.
            Version::V1 => match fs.write(&write.knob, write.want.text()) {
                Err(e) if Errno::from_io_error(&e) == Some(Errno::BUSY) => Some(e),
                other => return Ok(other?),
            },
            Version::V2 => None,
        };
        let usage = usage(fs, &write.knob)?;
        if fs.version() == Version::V2 {
            if usage <= limit {
                return Ok(fs.write(&write.knob, write.want.text())?);
            }
            reclaim(fs, Bytes((usage.0 - limit.0).min(PIECE)))?;
        }
        match waiting.should_continue(usage) {
            None => return Err(ShrinkError::BelowUsage { usage, answer }),
            Some(Gain::Some) => {}
            Some(Gain::None) => thread::sleep(PAUSE),
        }
    }
}

/// Returns the memory in use, if the change lowers a limit of it: the difference afterwards is what was reclaimed.
pub fn usage_if_lowered(fs: &impl CgroupFs, change: &Change) -> Option<Bytes> {
    let lowered = change.writes.iter().find(|write| write.lowered_memory().is_some())?;
    usage(fs, &lowered.knob).ok()
}

/// Returns the usage that counts against the limit in `knob`.
fn usage(fs: &impl CgroupFs, knob: &Knob) -> io::Result<Bytes> {
    let file = match fs.version() {
        Version::V1 if *knob == Knob::MEMSW_LIMIT => Knob::MEMSW_USAGE,
        Version::V1 => Knob::MEMORY_USAGE,
        Version::V2 => Knob::MEMORY_CURRENT,
    };
    fs.read(&file)?.trim().parse().map(Bytes).map_err(io::Error::other)
}

/// Makes the kernel reclaim memory. Less than requested, or a kernel without memory.reclaim, is not
/// an error: the caller reads the usage afterwards.
fn reclaim(fs: &impl CgroupFs, bytes: Bytes) -> io::Result<()> {
    match fs.write(&Knob::MEMORY_RECLAIM, &bytes.to_string()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::AGAIN | Errno::BUSY | Errno::INVAL)) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Whether the last try gave something back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gain {
    Some,
    None,
}

/// Goes on while there is gain, within bounds.
struct Waiting {
    timeouts: ShrinkTimeouts,
    began: Instant,
    gained: Instant,
    least: Bytes,
}

impl Waiting {
    fn new(timeouts: ShrinkTimeouts) -> Self {
        let now = Instant::now();
        Self { timeouts, began: now, gained: now, least: Bytes(u64::MAX) }
    }

    /// None once it is enough.
    fn should_continue(&mut self, usage: Bytes) -> Option<Gain> {
        let now = Instant::now();
        let gain = if usage < self.least { Gain::Some } else { Gain::None };
        if gain == Gain::Some {
            self.least = usage;
            self.gained = now;
        }
        (now - self.began < self.timeouts.within && now - self.gained < self.timeouts.stalled).then_some(gain)
    }
}
