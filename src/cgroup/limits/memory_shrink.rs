//! Lowers memory limits without an OOM kill.
//!
//! On v1 the kernel reclaims memory, and refuses a limit that is still below the usage. On v2 it
//! accepts any limit and kills processes until the usage fits. So on v2 crisp first lowers
//! `memory.high`, which slows processes down and kills none, then reclaims memory, page cache
//! first, and writes the limit once the usage fits.

use std::time::{Duration, Instant};
use std::{io, thread};

use model::resources::Bytes;
use rustix::io::Errno;

use crate::layout::Version;
use crate::limits::knob::{CgroupFs, Knob, Unreadable, Values};
use crate::limits::plan::{Change, Write};

/// Time limits for the reclaim before a memory limit is lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShrinkTimeouts {
    /// In total.
    pub within: Duration,
    /// Without progress: dirty pages are written to the disk before they can be reclaimed.
    pub stalled: Duration,
}

impl Default for ShrinkTimeouts {
    fn default() -> Self {
        Self { within: Duration::from_secs(5), stalled: Duration::from_millis(400) }
    }
}

/// The pause after an attempt without progress.
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

/// Adds the writes of `memory.high` before and after a limit that is below the usage.
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
    // If the change sets memory.high itself, that later write also ends the throttling.
    match change.writes.iter_mut().find(|write| write.knob == Knob::MEMORY_HIGH) {
        Some(later) => later.had.clone_from(&down.want),
        None => change.writes.insert(1, down.back()),
    }
    change.writes.insert(0, down);
    Ok(())
}

/// Returns the usage if a shrink certainly fails, so that processes are not slowed down without
/// effect. Only memory that cannot be reclaimed counts: without swap, memory that is not backed by
/// files.
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

/// Lowers a memory limit: waits until the usage fits, and writes then.
pub(crate) fn lower(fs: &impl CgroupFs, write: &Write, limit: Bytes) -> Result<(), ShrinkError> {
    let mut waiting = Waiting::new(fs.shrink_timeouts());
    loop {
        let answer = match fs.version() {
            // The kernel reclaims memory, and returns an error if that is not enough.
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

/// Returns the usage if the change lowers a memory limit: the later decrease is the reclaimed
/// memory.
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

/// Whether the last attempt reclaimed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gain {
    Some,
    None,
}

/// Continues while memory is reclaimed, within the time limits.
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

    /// None if the time is over.
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
