//! Executes a plan: writes, reads back, and undoes all writes if one fails.

use std::io;
use std::path::PathBuf;

use model::resources::{Bytes, LimitsPatch, ObservedLimits};
use model::{ErrorClass, ErrorDetail, ErrorKind};
use rustix::io::Errno;

use crate::forecast;
use crate::forecast::ShrinkForecast;
use crate::layout::Version;
use crate::limits::knob::{AppliedValues, CgroupFs, Knob, Unreadable, Values};
use crate::limits::memory_shrink::ShrinkError;
use crate::limits::plan::{Change, PlanError, Write};
use crate::limits::value::KnobValue;
use crate::limits::{memory_shrink, plan, v1, v2};
use crate::systemd::SyncError;

/// Why a change failed. Unless `left` names files, all values are as before.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("cannot change limits: the cgroup of {0} no longer exists")]
    Gone(PathBuf),
    #[error("cannot change the limits of a container's or pod's cgroup")]
    Refused(#[from] PlanError),
    #[error("reading the current limit in the cgroup file {file}")]
    Read { file: PathBuf, source: io::Error },
    #[error("reading the current limits of a container's or pod's cgroup before a change")]
    Unreadable(#[from] Unreadable),
    #[error("writing the limit {value:?} to the cgroup file {file}{}", leftovers(left))]
    Write { file: PathBuf, value: String, left: Vec<PathBuf>, source: io::Error },
    /// The text contains the words that the kubelet searches for.
    #[error(
        "attempting to set memory limit ({limit}) below current usage ({usage}): {} bytes cannot be reclaimed, {file} stays as it was{}",
        usage.0.saturating_sub(limit.0),
        leftovers(left)
    )]
    BelowUsage {
        file: PathBuf,
        limit: Bytes,
        usage: Bytes,
        /// The limit that fits instead, read after the refusal.
        forecast: Option<Box<ShrinkForecast>>,
        left: Vec<PathBuf>,
        source: Option<io::Error>,
    },
    #[error("the cgroup file {file} has {found:?} after crisp wrote {value:?}{}", leftovers(left))]
    NotKept { file: PathBuf, value: String, found: String, left: Vec<PathBuf> },
    #[error("reading the cgroup file {file} back after a write{}", leftovers(left))]
    NotReadBack { file: PathBuf, left: Vec<PathBuf>, source: io::Error },
    #[error("updating the limits in systemd after the change of the cgroup{}", leftovers(left))]
    NotTold { left: Vec<PathBuf>, source: Box<SyncError> },
}

fn leftovers(left: &[PathBuf]) -> String {
    let names: Vec<String> = left.iter().map(|file| file.display().to_string()).collect();
    if names.is_empty() { String::new() } else { format!(" (and could not be taken back: {})", names.join(", ")) }
}

impl ErrorClass for ApplyError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Gone(_) => ErrorKind::NotFound,
            Self::Refused(refused) => refused.kind(),
            Self::Read { source, .. } | Self::Write { source, .. } => match Errno::from_io_error(source) {
                // The cgroup exists; the file, or a device in the value, does not.
                Some(Errno::INVAL | Errno::RANGE | Errno::NOENT | Errno::NODEV) => ErrorKind::Invalid,
                // A cpuset wider than the parent's, or one without a CPU for the processes in it.
                Some(Errno::BUSY | Errno::ACCESS | Errno::NOSPC) => ErrorKind::Precondition,
                Some(_) | None => ErrorKind::Internal,
            },
            Self::BelowUsage { .. } => ErrorKind::Precondition,
            Self::NotTold { source, .. } => source.kind(),
            Self::Unreadable(_) | Self::NotKept { .. } | Self::NotReadBack { .. } => ErrorKind::Internal,
        }
    }

    fn detail(&self) -> Option<ErrorDetail> {
        let Self::BelowUsage { limit, usage, forecast, .. } = self else { return None };
        let mut metadata = vec![("limitBytes", limit.to_string()), ("usageBytes", usage.to_string())];
        if let Some(forecast) = forecast {
            metadata.extend([
                ("smallestLimitBytes", forecast.smallest_limit.to_string()),
                ("reclaimableBytes", forecast.reclaimable.to_string()),
                ("anonymousBytes", forecast.anonymous.to_string()),
                ("unevictableBytes", forecast.unevictable.to_string()),
                ("kernelBytes", forecast.kernel.to_string()),
                ("fileBytes", forecast.file.to_string()),
            ]);
        }
        Some(ErrorDetail { reason: "MEMORY_BELOW_USAGE", metadata })
    }
}

impl ApplyError {
    /// Files that do not have their earlier value.
    pub fn left(&self) -> &[PathBuf] {
        match self {
            Self::Write { left, .. }
            | Self::BelowUsage { left, .. }
            | Self::NotKept { left, .. }
            | Self::NotReadBack { left, .. }
            | Self::NotTold { left, .. } => left,
            Self::Gone(_) | Self::Refused(_) | Self::Read { .. } | Self::Unreadable(_) => &[],
        }
    }
}

/// A file with another value than crisp wrote: another process wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    pub knob: Knob,
    pub wrote: String,
    /// Its value after the write.
    pub read: String,
    /// Its current value; `None` if it no longer exists.
    pub found: Option<String>,
}

/// The current values in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentLimits {
    pub observed: ObservedLimits,
    pub drift: Vec<Drift>,
}

/// The outcome of an interrupted change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecoveryOutcome {
    /// All values are active.
    Finished(AppliedValues),
    /// None of the values is active.
    Undone,
}

/// Applies `patch` to one cgroup, completely or not at all, and returns the resulting values of the files.
pub fn apply(fs: &impl CgroupFs, patch: &LimitsPatch) -> Result<AppliedValues, ApplyError> {
    commit(fs, &prepare(fs, patch)?)
}

/// Plans a change against the active limits and checks that it can fit; writes nothing.
pub fn prepare(fs: &impl CgroupFs, patch: &LimitsPatch) -> Result<Change, ApplyError> {
    let change = plan_change(fs, patch)?;
    check_shrink(fs, &change)?;
    Ok(change)
}

/// Plans a change against the active limits; writes nothing.
pub fn plan_change(fs: &impl CgroupFs, patch: &LimitsPatch) -> Result<Change, ApplyError> {
    let now = read(fs, plan::knobs(fs.version(), patch))?;
    Ok(plan::plan(fs.version(), &now, patch)?)
}

/// Refuses a change whose lower memory limit certainly does not fit; writes nothing.
pub fn check_shrink(fs: &impl CgroupFs, change: &Change) -> Result<(), ApplyError> {
    let failed = |source| ApplyError::Read { file: fs.location(&Knob::MEMORY_STAT), source };
    match memory_shrink::exceeds_reclaimable(fs, change).map_err(failed)? {
        Some((write, usage)) => {
            Err(write_error(fs, &write, ShrinkError::BelowUsage { usage, answer: None }, Vec::new()))
        }
        None => Ok(()),
    }
}

/// Executes a prepared change, completely or not at all, and reads back the kernel's values.
pub fn commit(fs: &impl CgroupFs, change: &Change) -> Result<AppliedValues, ApplyError> {
    for (i, write) in change.writes.iter().enumerate() {
        if let Err(error) = write_value(fs, write) {
            let left = roll_back_write(fs, &change.writes[..i]);
            return Err(write_error(fs, write, error, left));
        }
    }
    notify_manager(fs, change)?;
    verify(fs, change)
}

/// Sends the written values to systemd, before they are read back, since systemd may change them.
fn notify_manager(fs: &impl CgroupFs, change: &Change) -> Result<(), ApplyError> {
    let new = change.writes.iter().map(|write| (write.knob.clone(), write.want.clone())).collect();
    fs.sync_manager(&new)
        .map_err(|source| ApplyError::NotTold { left: roll_back(fs, change), source: Box::new(source) })
}

/// Completes or rolls back an interrupted change, by the values in the kernel: completes it if all values are active,
/// else rolls it back. If that fails, since the memory is in use meanwhile, the change is completed.
pub fn recover(fs: &impl CgroupFs, change: &Change) -> Result<RecoveryOutcome, ApplyError> {
    let reversed = change.reversed();
    let now = read(fs, reversed.wanted.keys().cloned().collect())?;
    // A rollback starts from the values that the change ends with.
    let done = |write: &Write| now.get(&write.knob).is_some_and(|found| write.knob.same(&write.had, found));
    if reversed.writes.iter().all(done) {
        notify_manager(fs, change)?;
        return Ok(RecoveryOutcome::Finished(verify(fs, change)?));
    }
    match commit(fs, &reversed) {
        Ok(_) => Ok(RecoveryOutcome::Undone),
        Err(failed) => match commit(fs, change) {
            Ok(settings) => Ok(RecoveryOutcome::Finished(settings)),
            Err(_) => Err(failed),
        },
    }
}

/// Returns the active limits in the kernel, and where they differ from the written ones.
pub fn observe(fs: &impl CgroupFs, settings: &AppliedValues) -> Result<CurrentLimits, ApplyError> {
    let sizes = fs.huge_page_sizes();
    let mut knobs = match fs.version() {
        Version::V1 => v1::observed_knobs(&sizes),
        Version::V2 => v2::observed_knobs(&sizes),
    };
    let more: Vec<Knob> = settings.keys().filter(|knob| !knobs.contains(knob)).cloned().collect();
    knobs.extend(more);
    let values = read(fs, knobs)?;
    let observed = match fs.version() {
        Version::V1 => v1::observe(&values, &sizes)?,
        Version::V2 => v2::observe(&values, &sizes)?,
    };
    let drift = settings.iter().filter_map(|(knob, setting)| {
        let found = values.get(knob);
        let read_back = &setting.read_back;
        let same =
            found.is_some_and(|found| found.text() == read_back || knob.same(&knob.value(read_back.as_str()), found));
        (!same).then(|| Drift {
            knob: knob.clone(),
            wrote: setting.written.clone(),
            read: setting.read_back.clone(),
            found: found.map(KnobValue::to_string),
        })
    });
    Ok(CurrentLimits { observed, drift: drift.collect() })
}

/// Writes one value; a lower memory limit is written once the usage fits.
fn write_value(fs: &impl CgroupFs, write: &Write) -> Result<(), ShrinkError> {
    match write.lowered_memory() {
        Some(limit) => memory_shrink::lower(fs, write, limit),
        None => Ok(fs.write(&write.knob, write.want.text())?),
    }
}

fn write_error(fs: &impl CgroupFs, write: &Write, error: ShrinkError, left: Vec<PathBuf>) -> ApplyError {
    let file = fs.location(&write.knob);
    match error {
        ShrinkError::Io(_) if !fs.exists() => ApplyError::Gone(file),
        ShrinkError::BelowUsage { usage, answer } => {
            let limit = write.lowered_memory().unwrap_or(Bytes(0));
            let forecast = forecast::forecast(fs).ok().map(Box::new);
            ApplyError::BelowUsage { file, limit, usage, forecast, left, source: answer }
        }
        ShrinkError::Io(source) => ApplyError::Write { file, value: write.want.to_string(), left, source },
    }
}

fn verify(fs: &impl CgroupFs, change: &Change) -> Result<AppliedValues, ApplyError> {
    let mut settings = change.wanted.clone();
    for (i, write) in change.writes.iter().enumerate() {
        if change.writes[i + 1..].iter().any(|later| later.knob == write.knob) {
            continue;
        }
        let file = || fs.location(&write.knob);
        match fs.read(&write.knob).map(|found| write.knob.value(found)) {
            Ok(found) if write.knob.kept(&write.want, &found) => {
                if let Some(setting) = settings.get_mut(&write.knob) {
                    setting.read_back = found.to_string();
                }
            }
            Ok(found) => {
                let left = roll_back(fs, change);
                let (value, found) = (write.want.to_string(), found.to_string());
                return Err(ApplyError::NotKept { file: file(), value, found, left });
            }
            // The cgroup no longer exists, so nothing has to be undone.
            Err(_) if !fs.exists() => return Err(ApplyError::Gone(file())),
            Err(source) => {
                let left = roll_back(fs, change);
                return Err(ApplyError::NotReadBack { file: file(), left, source });
            }
        }
    }
    Ok(settings)
}

/// Writes the old values back, last first, and returns the files where that failed.
fn roll_back_write(fs: &impl CgroupFs, done: &[Write]) -> Vec<PathBuf> {
    let failed = done.iter().rev().filter(|write| write_value(fs, &write.back()).is_err());
    failed.map(|write| fs.location(&write.knob)).collect()
}

/// Rolls back a change that systemd received.
fn roll_back(fs: &impl CgroupFs, change: &Change) -> Vec<PathBuf> {
    let left = roll_back_write(fs, &change.writes);
    // systemd must not lower a limit at its next reload that could not be lowered here.
    let back = change.writes.iter().rev().filter(|write| !left.contains(&fs.location(&write.knob)));
    let old = back.map(|write| (write.knob.clone(), write.had.clone())).collect();
    // The original failure is reported; the values in the kernel are as before.
    fs.sync_manager(&old).ok();
    left
}

/// Reads those of `knobs` that the host has.
fn read(fs: &impl CgroupFs, knobs: Vec<Knob>) -> Result<Values, ApplyError> {
    let mut values = Values::new();
    let mut absent = None;
    for knob in knobs {
        match fs.read(&knob) {
            Ok(text) => {
                let value = knob.value(text);
                values.insert(knob, value);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => absent = Some(knob),
            // The file was open, and the cgroup is being removed.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NODEV) => {
                return Err(ApplyError::Gone(fs.location(&knob)));
            }
            Err(source) => return Err(ApplyError::Read { file: fs.location(&knob), source }),
        }
    }
    match absent {
        Some(knob) if values.is_empty() && !fs.exists() => Err(ApplyError::Gone(fs.location(&knob))),
        Some(_) | None => Ok(values),
    }
}
