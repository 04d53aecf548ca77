//! Changing what something may use while it runs: all or nothing, also when the daemon is cut off in the middle.
//!
//! ```text
//! read what is in force ─▶ plan ─▶ journal ─▶ write, read back ─▶ record ─▶ journal removed
//! ```
//! Whatever fails takes the earlier steps back. A daemon that finds a journal brings the change to one of its ends, by
//! what the kernel says.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use cgroup::{ApplyError, Cgroup, Change, Settings, Settled};
use model::{Classed, Kind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::oom_score::OomScoreError;
use crate::chain::chain;
use crate::fault::{self, Fault};
use crate::store::DiskError;

/// Why a change was not made; unless `Left`, everything is as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResizeError {
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    OomScore(#[from] OomScoreError),
    #[error("writing the journal {}", path.display())]
    Journal { path: PathBuf, source: io::Error },
    #[error("recording the change")]
    Record(#[from] DiskError),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("{}, and taking the change back failed too", chain(.first))]
    Left { first: Box<ResizeError>, source: ApplyError },
}

impl Classed for ResizeError {
    fn kind(&self) -> Kind {
        match self {
            Self::Apply(e) => e.kind(),
            Self::OomScore(e) => e.kind(),
            Self::Journal { source, .. } if source.kind() == io::ErrorKind::StorageFull => Kind::Exhausted,
            Self::Journal { .. } | Self::Fault(_) => Kind::Internal,
            Self::Record(e) => e.kind(),
            Self::Left { first, .. } => first.kind(),
        }
    }
}

impl ResizeError {
    /// Whether the kernel holds something now that it did not hold before.
    pub(super) fn is_left(&self) -> bool {
        match self {
            Self::Apply(e) => !e.left().is_empty(),
            Self::Left { .. } => true,
            Self::OomScore(_) | Self::Journal { .. } | Self::Record(_) | Self::Fault(_) => false,
        }
    }
}

/// What is about to change, written down before the first write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Journal<A> {
    /// What was asked, for the record.
    pub(super) asked: A,
    pub(super) change: Change,
}

impl<A> Journal<A> {
    pub(super) fn path(dir: &Path) -> PathBuf {
        dir.join("resize.json")
    }
}

impl<A: Serialize> Journal<A> {
    /// Not renamed into place: one that was cut off while it was written is no JSON, and nothing was changed yet.
    fn write(&self, dir: &Path) -> Result<(), ResizeError> {
        let path = Self::path(dir);
        let written = serde_json::to_vec(self).map_err(io::Error::from).and_then(|bytes| {
            let mut file = File::create(&path)?;
            file.write_all(&bytes)
        });
        written.map_err(|source| ResizeError::Journal { path, source })
    }
}

impl<A: DeserializeOwned> Journal<A> {
    /// The change that was cut off here, if one was.
    pub(super) fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(Self::path(dir)).ok()?).ok()
    }
}

/// Removes the journal: there is nothing to finish or undo.
pub(super) fn forget(dir: &Path) {
    let path = Journal::<()>::path(dir);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "a journal could not be removed");
        }
        Ok(()) | Err(_) => {}
    }
}

/// Carries out what `journal` says in `group`, and has it recorded in `dir`; where that fails, the kernel is as before.
pub(super) fn carry_out<A: Serialize>(
    group: &Cgroup,
    dir: &Path,
    journal: &Journal<A>,
    record: impl FnOnce(Settings) -> Result<(), ResizeError>,
) -> Result<(), ResizeError> {
    let change = &journal.change;
    if !change.is_empty() {
        journal.write(dir)?;
    }
    let outcome = fault::at("resize.journal").map_err(ResizeError::from).and_then(|()| {
        let settings = cgroup::commit(&fault::watched(group), change)?;
        let kept = fault::at("resize.applied").map_err(ResizeError::from).and_then(|()| record(settings));
        kept.map_err(|first| match cgroup::commit(group, &change.reversed()) {
            Ok(_) => first,
            Err(source) => ResizeError::Left { first: Box::new(first), source },
        })
    });
    fault::at("resize.recorded")?;
    // What could not be taken back is tried again by the next daemon.
    if !change.is_empty() && !outcome.as_ref().is_err_and(ResizeError::is_left) {
        forget(dir);
    }
    outcome
}

/// Brings a change that a daemon was cut off in to one of its ends. What it asked for, where it is in force now.
pub(super) fn settle<A: DeserializeOwned>(group: &Cgroup, dir: &Path) -> Option<(A, Settings)> {
    let Journal { asked, change } = Journal::<A>::read(dir)?;
    match cgroup::settle(group, &change) {
        Ok(Settled::Finished(settings)) => {
            tracing::info!(cgroup = %group.path(), "a change of resources that was cut off is in force");
            Some((asked, settings))
        }
        Ok(Settled::Undone) => {
            tracing::info!(cgroup = %group.path(), "a change of resources that was cut off is undone");
            None
        }
        // The container ended meanwhile.
        Err(error) if error.kind() == Kind::NotFound => None,
        Err(error) => {
            let error = chain(&error);
            tracing::error!(cgroup = %group.path(), error, "a change of resources that was cut off stays half done");
            None
        }
    }
}
