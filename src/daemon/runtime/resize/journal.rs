//! The journal of a resize: an interrupted change is completed or undone by the next daemon.
//!
//! ```text
//! read the active limits ─▶ plan ─▶ journal ─▶ write, read back ─▶ record ─▶ close the journal
//! ```
//! A failure rolls the earlier steps back. A daemon that finds a journal compares it with the
//! kernel's values, and completes the change or rolls it back.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cgroup::{AppliedValues, ApplyError, Cgroup, Change, RecoveryOutcome, Version};
use model::error_chain::chain;
use model::resources::{Bytes, LimitsPatch, UnifiedKey};
use model::{ErrorClass, ErrorDetail, ErrorKind};
use safe_fs::FileError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::caller::Caller;
use crate::failpoint;
use crate::failpoint::InjectedFailure;
use crate::runtime::container::oom_score::OomScoreError;

/// Why a change was not made; unless `Left`, all values are as before.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResizeError {
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    OomScore(#[from] OomScoreError),
    #[error("writing the resize journal {}", path.display())]
    Journal { path: PathBuf, source: io::Error },
    #[error("writing the new limits to the record of the pod or container")]
    Record(#[from] FileError),
    #[error(transparent)]
    Fault(#[from] InjectedFailure),
    #[error("{}, and rolling back the resize failed too", chain(.first))]
    Left { first: Box<ResizeError>, source: ApplyError },
}

impl ErrorClass for ResizeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Apply(e) => e.kind(),
            Self::OomScore(e) => e.kind(),
            Self::Journal { source, .. } if source.kind() == io::ErrorKind::StorageFull => ErrorKind::Exhausted,
            Self::Journal { .. } | Self::Fault(_) => ErrorKind::Internal,
            Self::Record(e) => e.kind(),
            Self::Left { first, .. } => first.kind(),
        }
    }

    fn detail(&self) -> Option<ErrorDetail> {
        match self {
            Self::Apply(e) => e.detail(),
            Self::Left { first, .. } => first.detail(),
            Self::OomScore(_) | Self::Journal { .. } | Self::Record(_) | Self::Fault(_) => None,
        }
    }
}

impl ResizeError {
    /// Whether the kernel has a value that it did not have before.
    pub(crate) fn is_left(&self) -> bool {
        match self {
            Self::Apply(e) => !e.left().is_empty(),
            Self::Left { .. } => true,
            Self::OomScore(_) | Self::Journal { .. } | Self::Record(_) | Self::Fault(_) => false,
        }
    }
}

/// The planned change, written before the first write to a cgroup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Journal<A> {
    /// The request, for the record.
    pub(crate) asked: A,
    pub(crate) change: Change,
    /// Missing in journals of earlier releases, as is the caller.
    #[serde(default = "SystemTime::now")]
    pub(crate) began: SystemTime,
    #[serde(default)]
    pub(crate) caller: Caller,
}

impl<A> Journal<A> {
    pub(crate) fn path(dir: &Path) -> PathBuf {
        dir.join("resize-journal.json")
    }
}

/// The first byte of an open journal; a completed one begins with an empty line.
const BEGIN: &[u8] = b"{";
const DONE: &[u8] = b"\n";

/// A journal on disk.
struct OpenJournal {
    path: PathBuf,
    file: File,
}

impl OpenJournal {
    /// Nothing has to be completed or rolled back any more.
    fn done(self) {
        if let Err(error) = self.file.write_all_at(DONE, 0) {
            tracing::warn!(path = %self.path.display(), %error, "cannot mark a resize journal as complete; the next start of the daemon processes it again");
        }
    }
}

impl<A: Serialize> Journal<A> {
    /// Overwrites the earlier journal from the second byte on, and writes the first byte last:
    /// until then it counts as completed. The rest of a longer earlier journal is not read.
    fn write(&self, dir: &Path) -> Result<OpenJournal, ResizeError> {
        let path = Self::path(dir);
        let written = serde_json::to_vec(self).map_err(io::Error::from).and_then(|bytes| {
            let file = File::options().write(true).create(true).truncate(false).open(&path)?;
            file.write_all_at(&bytes[BEGIN.len()..], 1)?;
            file.write_all_at(BEGIN, 0)?;
            Ok(file)
        });
        match written {
            Ok(file) => Ok(OpenJournal { path, file }),
            Err(source) => Err(ResizeError::Journal { path, source }),
        }
    }
}

impl<A: DeserializeOwned> Journal<A> {
    /// Returns the interrupted change in `dir`, if there is one.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let bytes = fs::read(Self::path(dir)).ok()?;
        let mut values = serde_json::Deserializer::from_slice(&bytes).into_iter::<Self>();
        values.next().filter(|_| bytes.starts_with(BEGIN))?.ok()
    }
}

/// Removes a completed journal.
pub(crate) fn forget(dir: &Path) {
    let path = Journal::<()>::path(dir);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot remove a resize journal after a complete resize; remove it by hand");
        }
        Ok(()) | Err(_) => {}
    }
}

/// Applies the change of `journal` to `group`, and records it in `dir`; after a failure the cgroup is as before.
/// Stores in `reclaimed` by how much the memory in use decreased while its limit was lowered.
pub(crate) fn apply<A: Serialize>(
    group: &Cgroup,
    dir: &Path,
    journal: &Journal<A>,
    reclaimed: &mut Option<Bytes>,
    record: impl FnOnce(AppliedValues) -> Result<(), ResizeError>,
) -> Result<(), ResizeError> {
    let change = &journal.change;
    let written = if change.is_empty() {
        None
    } else {
        Some(tracing::debug_span!("resize.journal").in_scope(|| journal.write(dir))?)
    };
    let outcome = failpoint::at("resize.journal").map_err(ResizeError::from).and_then(|()| {
        let before = cgroup::usage_if_lowered(group, change);
        let writing = tracing::debug_span!("resize.write");
        let committed = writing.in_scope(|| cgroup::commit(&failpoint::with_failpoints(group), change));
        let after = before.and_then(|_| cgroup::usage_if_lowered(group, change));
        *reclaimed = before.zip(after).map(|(before, after)| Bytes(before.0.saturating_sub(after.0)));
        let settings = committed?;
        let recording = tracing::debug_span!("resize.record");
        let applied = failpoint::at("resize.applied").map_err(ResizeError::from);
        let kept = applied.and_then(|()| recording.in_scope(|| record(settings)));
        kept.map_err(|first| match cgroup::commit(group, &change.reversed()) {
            Ok(_) => first,
            Err(source) => ResizeError::Left { first: Box::new(first), source },
        })
    });
    failpoint::at("resize.recorded")?;
    match written {
        // The next daemon retries a rollback that failed.
        Some(_) if outcome.as_ref().is_err_and(ResizeError::is_left) => {}
        Some(written) => written.done(),
        // A journal that could not be closed would be taken for this one.
        None if outcome.is_ok() => forget(dir),
        None => {}
    }
    outcome
}

/// A change that an earlier daemon did not finish, and its end.
#[derive(Debug)]
pub(crate) struct Recovered<A> {
    pub(crate) journal: Journal<A>,
    pub(crate) outcome: Result<RecoveryOutcome, ApplyError>,
}

/// Completes the change of a killed daemon or rolls it back. If it is active, the request and the
/// values of the files are recorded. The next daemon retries a change that can be neither completed,
/// rolled back nor recorded.
pub(crate) fn recover<A: DeserializeOwned>(
    group: &Cgroup,
    dir: &Path,
    record: impl FnOnce(&A, &AppliedValues) -> Result<(), FileError>,
) -> Option<Recovered<A>> {
    let Some(journal) = Journal::<A>::read(dir) else {
        forget(dir);
        return None;
    };
    let outcome = cgroup::recover(group, &journal.change);
    let recorded = match &outcome {
        Ok(RecoveryOutcome::Finished(settings)) => record(&journal.asked, settings),
        Ok(RecoveryOutcome::Undone) => Ok(()),
        // The container exited meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => {
            let (cgroup, error) = (group.path(), chain(error));
            tracing::error!(%cgroup, error, "cannot complete or roll back an interrupted resize: some limits are new, some old; the next start retries");
            return Some(Recovered { journal, outcome });
        }
    };
    match recorded {
        Ok(()) => forget(dir),
        Err(error) => tracing::error!(
            cgroup = %group.path(),
            error = chain(&error),
            "cannot record the limits of an interrupted resize; the next start of the daemon retries"
        ),
    }
    Some(Recovered { journal, outcome })
}

/// Removes values without a file on this host from a change, and logs them.
pub(crate) fn drop_unified_on_v1(field: &str, version: Version, limits: &mut LimitsPatch) {
    if version == Version::V1 && !limits.unified.is_empty() {
        let keys: Vec<&str> = limits.unified.keys().map(UnifiedKey::as_str).collect();
        tracing::warn!(?keys, "ignoring {field}.unified: this host has cgroup v1");
        limits.unified.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(asked: &str) -> Journal<String> {
        let (began, caller) = (SystemTime::UNIX_EPOCH, Caller::default());
        Journal { asked: asked.to_owned(), change: Change::default(), began, caller }
    }

    #[test]
    fn a_journal_is_read_until_it_is_closed_and_the_next_one_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Journal::<String>::read(dir.path()), None);
        for asked in ["a long wish", "short", "a wish that is longer still"] {
            let written = journal(asked).write(dir.path()).unwrap();
            assert_eq!(Journal::read(dir.path()), Some(journal(asked)));
            written.done();
            assert_eq!(Journal::<String>::read(dir.path()), None);
        }
    }

    #[test]
    fn the_json_of_a_journal_holds_values_as_texts_and_an_older_one_has_no_caller() {
        let change = r#"{"writes":[{"knob":"memory.max","had":"max","want":"64M"}],"wanted":{"memory.max":{"written":"64M","read_back":"max"}}}"#;
        let caller = r#"{"peer":{"pid":7,"uid":0,"program":"kubelet"},"trace":"0af7"}"#;
        let began = r#"{"secs_since_epoch":1,"nanos_since_epoch":2}"#;
        let text = format!(r#"{{"asked":"x","change":{change},"began":{began},"caller":{caller}}}"#);
        let journal: Journal<String> = serde_json::from_str(&text).unwrap();
        assert_eq!(*journal.change.writes[0].want.value(), cgroup::Value::Number(64 << 20));
        assert_eq!(serde_json::to_string(&journal).unwrap(), text);
        let older: Journal<String> = serde_json::from_str(&format!(r#"{{"asked":"x","change":{change}}}"#)).unwrap();
        assert_eq!((older.change, older.caller), (journal.change, Caller::default()));
    }

    #[test]
    fn a_partly_written_journal_counts_as_completed() {
        let dir = tempfile::tempdir().unwrap();
        journal("the one before").write(dir.path()).unwrap().done();
        let next = serde_json::to_vec(&journal("the next one, which is longer than that")).unwrap();
        let path = Journal::<String>::path(dir.path());
        for cut in 1..=next.len() {
            let file = File::options().write(true).open(&path).unwrap();
            file.write_all_at(&next[1..cut], 1).unwrap();
            assert_eq!(Journal::<String>::read(dir.path()), None, "cut off at {cut}");
        }
    }
}
