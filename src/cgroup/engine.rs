//! Carries a plan out: write, read back, and all of it taken back when anything fails.

use std::io;
use std::path::PathBuf;

use model::Kind;
use model::resources::{LimitsPatch, Observed};
use rustix::io::Errno;

use crate::knob::{CgroupFs, Knob, Unreadable, Values};
use crate::layout::Version;
use crate::plan::{self, Refused, Write};
use crate::{v1, v2};

/// Why a change failed; unless `left` names files, everything is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("the cgroup of {0} does not exist")]
    Gone(PathBuf),
    #[error("the change is not possible")]
    Refused(#[from] Refused),
    #[error("reading {file}")]
    Read { file: PathBuf, source: io::Error },
    #[error("reading the limits in force")]
    Unreadable(#[from] Unreadable),
    #[error("writing {value:?} to {file}{}", leftovers(left))]
    Write { file: PathBuf, value: String, left: Vec<PathBuf>, source: io::Error },
    #[error("{file} reads {found:?} after {value:?} was written to it{}", leftovers(left))]
    NotKept { file: PathBuf, value: String, found: String, left: Vec<PathBuf> },
}

fn leftovers(left: &[PathBuf]) -> String {
    let names: Vec<String> = left.iter().map(|file| file.display().to_string()).collect();
    if names.is_empty() { String::new() } else { format!(" (and could not be taken back: {})", names.join(", ")) }
}

impl ApplyError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Gone(_) => Kind::NotFound,
            Self::Refused(refused) => refused.kind(),
            Self::Read { source, .. } | Self::Write { source, .. } => match Errno::from_io_error(source) {
                Some(Errno::NOENT | Errno::NODEV) => Kind::NotFound,
                Some(Errno::INVAL | Errno::RANGE) => Kind::Invalid,
                // Memory below usage, a cpuset wider than the parent's, or one whose users have nowhere to go.
                Some(Errno::BUSY | Errno::ACCESS | Errno::NOSPC) => Kind::Precondition,
                Some(_) | None => Kind::Internal,
            },
            Self::Unreadable(_) | Self::NotKept { .. } => Kind::Internal,
        }
    }
}

/// Makes `patch` true in one cgroup, whole or not at all, and says what is in force then.
pub fn apply(fs: &impl CgroupFs, patch: &LimitsPatch) -> Result<Observed, ApplyError> {
    let now = read(fs, plan::knobs(fs.version(), patch))?;
    let writes = plan::plan(fs.version(), &now, patch)?;
    carry_out(fs, &writes)?;
    verify(fs, &writes)?;
    observe(fs)
}

/// What the kernel says is in force.
pub fn observe(fs: &impl CgroupFs) -> Result<Observed, ApplyError> {
    let sizes = fs.huge_page_sizes();
    match fs.version() {
        Version::V1 => Ok(v1::observe(&read(fs, v1::observed_knobs(&sizes))?, &sizes)?),
        Version::V2 => Ok(v2::observe(&read(fs, v2::observed_knobs(&sizes))?, &sizes)?),
    }
}

/// Writes one after the other; at the first that fails, the earlier ones are written back last first.
pub fn carry_out(fs: &impl CgroupFs, writes: &[Write]) -> Result<(), ApplyError> {
    for (i, write) in writes.iter().enumerate() {
        if let Err(source) = fs.write(&write.knob, &write.want) {
            let left = take_back(fs, &writes[..i]);
            return Err(ApplyError::Write { file: fs.location(&write.knob), value: write.want.clone(), left, source });
        }
    }
    Ok(())
}

fn verify(fs: &impl CgroupFs, writes: &[Write]) -> Result<(), ApplyError> {
    for write in writes {
        let file = || fs.location(&write.knob);
        match fs.read(&write.knob) {
            Ok(found) if write.knob.kept(&write.want, &found) => {}
            Ok(found) => {
                let left = take_back(fs, writes);
                return Err(ApplyError::NotKept { file: file(), value: write.want.clone(), found, left });
            }
            // The cgroup has just gone: there is nothing left to take back.
            Err(source) => return Err(ApplyError::Read { file: file(), source }),
        }
    }
    Ok(())
}

/// Writes the old values back and returns the files where that failed.
fn take_back(fs: &impl CgroupFs, done: &[Write]) -> Vec<PathBuf> {
    let failed = done.iter().rev().filter(|write| fs.write(&write.knob, &write.had).is_err());
    failed.map(|write| fs.location(&write.knob)).collect()
}

/// Reads those of `knobs` that the host has.
fn read(fs: &impl CgroupFs, knobs: Vec<Knob>) -> Result<Values, ApplyError> {
    let mut values = Values::new();
    let mut absent = None;
    for knob in knobs {
        match fs.read(&knob) {
            Ok(value) => {
                values.insert(knob, value);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => absent = Some(knob),
            Err(source) => return Err(ApplyError::Read { file: fs.location(&knob), source }),
        }
    }
    match absent {
        Some(knob) if !fs.exists() => Err(ApplyError::Gone(fs.location(&knob))),
        Some(_) | None => Ok(values),
    }
}
