//! Changes the limits of a pod or container: plan, journal, write and read back, record.
//!
//! ```text
//! read the limits in force ─▶ plan ─▶ journal ─▶ write, read back ─▶ OOM score ─▶ record ─▶ close the journal
//!   ─▶ report
//! ```
//! The caller holds the resource lock of the entry. [`journal::apply`] rolls back on every failure.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cgroup::{AppliedValues, ApplyError, Cgroup, Change, RecoveryOutcome};
use model::error_chain::chain;
use model::resources::{Bytes, LimitsPatch, OomScoreAdj};
use model::{CgroupPath, ErrorClass, ErrorDetail, ErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use super::caller::Caller;
use super::finished::{FileChange, FinishedResize, ResizeTarget, file_changes};
use super::journal::{Journal, Recovered, ResizeError};
use super::outcomes::Outcome;
use super::{journal, span};
use crate::runtime::container::oom_score;
use crate::runtime::lifecycle_steps::Step;
use crate::runtime::{LookupError, Runtime, blocking};
use crate::store::{CgroupRecord, Entry, Layout};

/// Why the resources of a pod or container were not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpdateError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("changing the resources of {what} {id}")]
    Resize { what: &'static str, id: String, source: Box<ResizeError> },
}

impl ErrorClass for UpdateError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::Resize { source, .. } => source.kind(),
        }
    }

    fn detail(&self) -> Option<ErrorDetail> {
        match self {
            Self::Look(e) => e.detail(),
            Self::Resize { source, .. } => source.detail(),
        }
    }
}

impl UpdateError {
    pub(crate) fn new<R: Resizable>(record: &R, source: ResizeError) -> Self {
        Self::Resize { what: R::WHAT, id: record.id().to_owned(), source: Box::new(source) }
    }
}

/// A record of a pod or container with limits.
pub(crate) trait Resizable: CgroupRecord + PartialEq + Send + Sync + 'static {
    type Update: Serialize + DeserializeOwned + Send + 'static;
    /// The noun for it in messages.
    const WHAT: &'static str;

    /// Returns the limits to write for `update`, and removes from it what this host cannot apply.
    fn limits(&self, update: &mut Self::Update, group: &Cgroup) -> LimitsPatch;

    /// Updates the requested resources in the record.
    fn apply_update(&mut self, update: &Self::Update);

    /// The values that were written to the files of the cgroup.
    fn applied(&self) -> &AppliedValues;

    fn applied_mut(&mut self) -> &mut AppliedValues;

    /// The requested OOM score.
    fn oom_score_adj(&self) -> Option<OomScoreAdj> {
        None
    }

    /// Its names, for reports.
    fn target(&self, runtime: &Runtime) -> ResizeTarget;

    /// Adjusts the running processes to the updated record.
    fn change_processes(
        &self,
        _runtime: &Runtime,
        _group: &Cgroup,
        _updated: &Self,
    ) -> Result<oom_score::Changed, ResizeError> {
        Ok(oom_score::Changed::default())
    }

    /// Whether [`change_processes`](Self::change_processes) changes anything.
    fn changes_processes(&self, _updated: &Self) -> bool {
        false
    }

    /// Whether nothing has to be changed if the cgroup does not exist.
    fn may_lack_cgroup(&self) -> bool;

    /// The step of the lifecycle between plan and first write, if there is one.
    fn step<'a>(&'a self, _update: &'a Self::Update) -> Option<Step<'a>> {
        None
    }

    /// The directory with the record and the journal.
    fn dir(&self, layout: &Layout) -> PathBuf {
        let mut dir = self.file(layout);
        dir.pop();
        dir
    }
}

/// A planned change: nothing is written yet.
struct Resize<R: Resizable> {
    record: Arc<R>,
    updated: R,
    journal: Journal<R::Update>,
}

/// The changes that a resize made or was to make.
#[derive(Debug, Default)]
struct Attempt {
    files: Vec<FileChange>,
    oom_score_adj: Option<(Option<OomScoreAdj>, OomScoreAdj)>,
    reclaimed: Option<Bytes>,
}

impl Attempt {
    /// Returns the attempt before any write: with the requested values.
    fn planned<R: Resizable>(record: &R, updated: &R, change: &Change) -> Self {
        let score = updated.oom_score_adj().filter(|new| record.oom_score_adj() != Some(*new));
        Self {
            files: file_changes(change, record.applied(), None),
            oom_score_adj: score.map(|new| (record.oom_score_adj(), new)),
            reclaimed: None,
        }
    }
}

impl Runtime {
    /// Changes the resources of a pod or container, completely or not at all.
    pub(crate) async fn resize<R: Resizable>(
        self: &Arc<Self>,
        entry: &Arc<Entry<R>>,
        update: R::Update,
        caller: Caller,
    ) -> Result<(), UpdateError> {
        let resize = Box::pin(self.resize_in_span(entry, update, caller));
        resize.instrument(span::resize_span()).await
    }

    async fn resize_in_span<R: Resizable>(
        self: &Arc<Self>,
        entry: &Arc<Entry<R>>,
        update: R::Update,
        caller: Caller,
    ) -> Result<(), UpdateError> {
        let (began, clock) = (SystemTime::now(), Instant::now());
        let planning = tracing::debug_span!("resize.plan");
        let planned = planning.in_scope(|| plan(entry, self.cgroup_of(entry), update, began, &caller));
        let (attempt, result) = match planned {
            Ok(Some(resize)) => self.attempt(entry, resize).await,
            Ok(None) => {
                self.resizes.count(Outcome::Unchanged);
                return Ok(());
            }
            Err(error) => (Attempt::default(), Err(error)),
        };
        let record = entry.get();
        let outcome = match &result {
            Ok(()) => Outcome::Applied,
            Err(ResizeError::Apply(ApplyError::Gone(_))) if record.may_lack_cgroup() => return Ok(()),
            Err(error) => Outcome::of(error),
        };
        self.refused_shrinks.note(record.id(), &result);
        let Attempt { files, oom_score_adj, reclaimed } = attempt;
        let finished = FinishedResize {
            began,
            duration: clock.elapsed(),
            target: record.target(self),
            caller,
            files,
            oom_score_adj,
            outcome,
            error: result.as_ref().err().map(|error| chain(error)),
            reclaimed,
        };
        self.finish_resize(&finished, record.cgroup_path());
        result.map_err(|error| UpdateError::new(&*record, error))
    }

    /// Counts, logs and stores a resize: the one place where every resize ends that was applied, refused, rolled back
    /// or left.
    pub(super) fn finish_resize(&self, resize: &FinishedResize, cgroup: &CgroupPath) {
        let resources = resize.resources();
        self.resizes.count(resize.outcome);
        self.resizes.times().note(resize, &resources);
        resize.log(&resources);
        span::record(resize, &resources);
        self.history.add(resize, self.pod_dir(&resize.target.pod));
        if resize.outcome.words().0 == "applied" {
            self.watched.add(resize, cgroup);
            self.queue_notices(resize);
        }
    }

    async fn attempt<R: Resizable>(
        self: &Arc<Self>,
        entry: &Arc<Entry<R>>,
        resize: Resize<R>,
    ) -> (Attempt, Result<(), ResizeError>) {
        let group = self.cgroup_of(entry);
        let change = &resize.journal.change;
        let mut attempt = Attempt::planned(&*resize.record, &resize.updated, change);
        if let Err(refused) = cgroup::check_shrink(group, change) {
            return (attempt, Err(refused.into()));
        }
        if let Some(step) = resize.record.step(&resize.journal.asked) {
            self.at_step(&step);
        }
        // Writes that do not wait take less time than the change to another thread.
        let waits = resize.record.changes_processes(&resize.updated) || group.uses_systemd();
        if change.is_quick() && !waits {
            let result = self.apply_resize(entry, resize, &mut attempt);
            return (attempt, result);
        }
        let (runtime, entry) = (self.clone(), entry.clone());
        blocking(move || {
            let result = runtime.apply_resize(&entry, resize, &mut attempt);
            (attempt, result)
        })
        .await
    }

    fn apply_resize<R: Resizable>(
        &self,
        entry: &Entry<R>,
        resize: Resize<R>,
        attempt: &mut Attempt,
    ) -> Result<(), ResizeError> {
        let Resize { record, updated, journal } = resize;
        let group = self.cgroup_of(entry);
        let Attempt { files, reclaimed, .. } = attempt;
        let dir = record.dir(&self.layout);
        journal::apply(group, &dir, &journal, reclaimed, |applied| {
            let changed = record.change_processes(self, group, &updated)?;
            let read_back = file_changes(&journal.change, record.applied(), Some(&applied));
            let recorded = entry.try_update(&self.layout, |record| {
                record.apply_update(&journal.asked);
                record.applied_mut().extend(applied);
            });
            match recorded {
                Ok(()) => *files = read_back,
                Err(_) => changed.roll_back(),
            }
            Ok(recorded?)
        })
    }

    /// Finishes or undoes a change that an earlier daemon did not finish, and returns the record after it.
    pub(crate) fn recover_resize<R: Resizable>(&self, mut record: R) -> R {
        let dir = record.dir(&self.layout);
        if !Journal::<R::Update>::path(&dir).exists() {
            return record;
        }
        let (clock, before) = (Instant::now(), record.clone());
        let group = self.cgroup(record.cgroup_path());
        let recovered = journal::recover(&group, &dir, |update: &R::Update, applied| {
            let mut updated = record.clone();
            updated.apply_update(update);
            match record.change_processes(self, &group, &updated) {
                // The change is finished and will not be rolled back.
                Ok(changed) => drop(changed),
                Err(error) => tracing::warn!(
                    cgroup = %group.path(),
                    error = chain(&error),
                    "completing an interrupted resize: cannot change the OOM score of all the container's processes"
                ),
            }
            updated.applied_mut().extend(applied.clone());
            let written = safe_fs::overwrite_json(&updated.file(&self.layout), &updated);
            record = updated;
            written
        });
        if let Some(recovered) = recovered {
            let finished = recovered_resize(self, &before, recovered, clock.elapsed());
            self.finish_resize(&finished, before.cgroup_path());
        }
        record
    }
}

/// Returns the end of a resize that an earlier daemon began; its duration is that of the recovery.
fn recovered_resize<R: Resizable>(
    runtime: &Runtime,
    record: &R,
    recovered: Recovered<R::Update>,
    duration: Duration,
) -> FinishedResize {
    let Recovered { journal: Journal { asked, change, began, caller }, outcome } = recovered;
    let mut updated = record.clone();
    updated.apply_update(&asked);
    let Attempt { files, oom_score_adj, reclaimed } = Attempt::planned(record, &updated, &change);
    let (files, outcome, error) = match outcome {
        Ok(RecoveryOutcome::Finished(applied)) => {
            (file_changes(&change, record.applied(), Some(&applied)), Outcome::FinishedAtRecovery, None)
        }
        Ok(RecoveryOutcome::Undone) => (files, Outcome::UndoneAtRecovery, None),
        Err(error) if error.kind() == ErrorKind::NotFound => (files, Outcome::Gone, Some(chain(&error))),
        Err(error) => (files, Outcome::Left, Some(chain(&error))),
    };
    let target = record.target(runtime);
    FinishedResize { began, duration, target, caller, files, oom_score_adj, outcome, error, reclaimed }
}

/// Plans a change; `None` if everything is as requested.
fn plan<R: Resizable>(
    entry: &Entry<R>,
    group: &Cgroup,
    mut update: R::Update,
    began: SystemTime,
    caller: &Caller,
) -> Result<Option<Resize<R>>, ResizeError> {
    let record = entry.get();
    let limits = record.limits(&mut update, group);
    let change = cgroup::plan_change(group, &limits)?;
    let mut updated = R::clone(&record);
    updated.apply_update(&update);
    let requested = updated == *record;
    let applied = updated.applied();
    let known = change.wanted.iter().all(|(knob, wanted)| applied.get(knob) == Some(wanted));
    if change.is_empty() && known && requested {
        return Ok(None);
    }
    let caller = caller.clone();
    Ok(Some(Resize { record, updated, journal: Journal { asked: update, change, began, caller } }))
}
