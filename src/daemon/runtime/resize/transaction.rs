//! Changes the limits of a pod or container: plan, journal, write and read back, record.
//!
//! ```text
//! read the limits in force ─▶ plan ─▶ journal ─▶ write, read back ─▶ OOM score ─▶ record ─▶ close the journal
//! ```
//! The caller holds the resource lock of the entry. [`journal::apply`] rolls back on every failure.

use std::path::PathBuf;
use std::sync::Arc;

use cgroup::{AppliedValues, ApplyError, Cgroup};
use model::error_chain::chain;
use model::resources::LimitsPatch;
use model::{ErrorClass, ErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::journal;
use super::journal::{Journal, ResizeError};
use super::outcomes::Outcome;
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
}

impl UpdateError {
    pub(crate) fn new<R: Resizable>(record: &R, source: ResizeError) -> Self {
        Self::Resize { what: R::WHAT, id: record.id().to_owned(), source: Box::new(source) }
    }
}

/// A record of a pod or container with limits.
pub(crate) trait Resizable: CgroupRecord + PartialEq + Send + Sync + 'static {
    type Update: Serialize + DeserializeOwned + Send + 'static;
    /// The word for it in messages.
    const WHAT: &'static str;

    /// Returns the limits to write for `update`, and removes from it what this host cannot apply.
    fn limits(&self, update: &mut Self::Update, group: &Cgroup) -> LimitsPatch;

    /// Updates the requested resources in the record.
    fn apply_update(&mut self, update: &Self::Update);

    /// The values that were written to the files of the cgroup.
    fn applied(&mut self) -> &mut AppliedValues;

    /// Adjusts the running processes to the updated record.
    fn change_processes(
        &self,
        _runtime: &Runtime,
        _group: &Cgroup,
        _updated: &Self,
    ) -> Result<oom_score::Changed, ResizeError> {
        Ok(oom_score::Changed::default())
    }

    /// Whether [`change_processes`](Self::change_processes) has something to do.
    fn changes_processes(&self, _updated: &Self) -> bool {
        false
    }

    /// Whether a missing cgroup means that there is nothing to change any more.
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

impl Runtime {
    /// Changes the resources of a pod or container, completely or not at all.
    pub(crate) async fn resize<R: Resizable>(
        self: &Arc<Self>,
        entry: &Arc<Entry<R>>,
        update: R::Update,
    ) -> Result<(), UpdateError> {
        let outcome = self.resize_entry(entry, update).await;
        let record = entry.get();
        match outcome {
            Ok(outcome) => self.resizes.count(outcome),
            Err(ResizeError::Apply(ApplyError::Gone(_))) if record.may_lack_cgroup() => {}
            Err(error) => {
                self.resizes.count_error(&error);
                return Err(UpdateError::new(&*record, error));
            }
        }
        Ok(())
    }

    async fn resize_entry<R: Resizable>(
        self: &Arc<Self>,
        entry: &Arc<Entry<R>>,
        update: R::Update,
    ) -> Result<Outcome, ResizeError> {
        let group = self.cgroup_of(entry);
        let Some(resize) = plan(entry, group, update)? else { return Ok(Outcome::Unchanged) };
        if let Some(step) = resize.record.step(&resize.journal.asked) {
            self.at_step(&step);
        }
        // Writes that cannot wait take less time than a hand-over to another thread.
        let waits = resize.record.changes_processes(&resize.updated) || group.uses_systemd();
        if resize.journal.change.is_quick() && !waits {
            self.apply_resize(entry, resize)?;
        } else {
            let (runtime, entry) = (self.clone(), entry.clone());
            blocking(move || runtime.apply_resize(&entry, resize)).await?;
        }
        Ok(Outcome::Applied)
    }

    fn apply_resize<R: Resizable>(&self, entry: &Entry<R>, resize: Resize<R>) -> Result<(), ResizeError> {
        let Resize { record, updated, journal } = resize;
        let group = self.cgroup_of(entry);
        journal::apply(group, &record.dir(&self.layout), &journal, |applied| {
            let changed = record.change_processes(self, group, &updated)?;
            let recorded = entry.try_update(&self.layout, |record| {
                record.apply_update(&journal.asked);
                record.applied().extend(applied);
            });
            if recorded.is_err() {
                changed.roll_back();
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
        let group = self.cgroup(record.cgroup_path());
        journal::recover(&group, &dir, |update: R::Update, applied| {
            let mut updated = record.clone();
            updated.apply_update(&update);
            match record.change_processes(self, &group, &updated) {
                // The change is finished and will not be rolled back.
                Ok(changed) => drop(changed),
                Err(error) => tracing::warn!(error = chain(&error), "an OOM score could not be changed"),
            }
            updated.applied().extend(applied);
            let written = safe_fs::overwrite_json(&updated.file(&self.layout), &updated);
            record = updated;
            written
        });
        record
    }
}

/// Plans a change; `None` if everything is as requested.
fn plan<R: Resizable>(
    entry: &Entry<R>,
    group: &Cgroup,
    mut update: R::Update,
) -> Result<Option<Resize<R>>, ResizeError> {
    let record = entry.get();
    let limits = record.limits(&mut update, group);
    let change = cgroup::prepare(group, &limits)?;
    let mut updated = R::clone(&record);
    updated.apply_update(&update);
    let requested = updated == *record;
    let applied = updated.applied();
    let known = change.wanted.iter().all(|(knob, wanted)| applied.get(knob) == Some(wanted));
    if change.is_empty() && known && requested {
        return Ok(None);
    }
    Ok(Some(Resize { record, updated, journal: Journal { asked: update, change } }))
}
