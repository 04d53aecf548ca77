//! UpdateContainerResources.

use std::sync::Arc;

use cgroup::{AppliedValues, ApplyError, Cgroup};
use config::OomPolicy;
use model::resources::{LimitsPatch, OomScoreAdj};
use model::{ContainerId, ContainerSpec, ContainerUpdate, ErrorClass, ErrorKind, PodId};
use safe_fs::FileError;

use super::oom_score;
use crate::runtime::lifecycle_steps::Step;
use crate::runtime::resize::journal;
use crate::runtime::resize::journal::{Journal, ResizeError};
use crate::runtime::resize::outcomes::Outcome;
use crate::runtime::{LookupError, Runtime, blocking};
use crate::store::{CONTAINER_FILE, ContainerRecord, Entry};

#[derive(Debug, thiserror::Error)]
pub(crate) enum UpdateError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("changing the resources of container {container}")]
    Resize { container: ContainerId, source: Box<ResizeError> },
}

impl ErrorClass for UpdateError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::Resize { source, .. } => source.kind(),
        }
    }
}

/// A container that was given the same limit for memory as for memory and swap may not swap. That stays so where only its memory
/// is changed: on v1 the old limit of both would be in the way, or leave room for swap.
fn keep_swap_disabled(had: &LimitsPatch, asked: &mut LimitsPatch) {
    let limited = had.memory.is_some_and(|memory| memory.bytes().is_some());
    if asked.memory.is_some() && asked.memory_swap.is_none() && limited && had.memory == had.memory_swap {
        asked.memory_swap = asked.memory;
    }
}

/// A change that was thought through.
struct Prepared {
    record: Arc<ContainerRecord>,
    group: Cgroup,
    journal: Journal<ContainerUpdate>,
    /// The container as it is to be.
    all: ContainerSpec,
    /// Where that changes.
    score: Option<OomScoreAdj>,
}

impl Runtime {
    /// Changes what a container may use. One that has ended has nothing to change, and that is no failure: it may have
    /// ended while the request was under way.
    pub(crate) async fn update(self: &Arc<Self>, id: &str, asked: ContainerUpdate) -> Result<(), UpdateError> {
        let entry = self.readable_container(id)?;
        let _turn = entry.lock_resources().await;
        if !self.containers.has(&entry) {
            return Err(LookupError::NoSuchContainer(id.to_owned()).into());
        }
        let Some(prepared) = self.prepare_update(&entry, asked)? else { return Ok(()) };
        self.at_step(&Step::UpdateContainer(&prepared.record, &prepared.journal.asked));
        // Another thread would take longer to begin with it than it takes.
        let quick = prepared.journal.change.is_quick() && prepared.score.is_none() && !prepared.group.uses_systemd();
        let outcome = if quick {
            self.apply_update(&entry, prepared)
        } else {
            let (runtime, entry) = (self.clone(), entry.clone());
            blocking(move || runtime.apply_update(&entry, prepared)).await
        };
        self.release_if_ended(&entry);
        outcome
    }

    /// Thinks a change through; none where there is nothing to change.
    fn prepare_update(
        &self,
        entry: &Entry<ContainerRecord>,
        mut asked: ContainerUpdate,
    ) -> Result<Option<Prepared>, UpdateError> {
        let record = entry.get();
        if record.state.pid().is_none() {
            return Ok(None);
        }
        let group = self.cgroup(&record.cgroup).with_file_cache(entry.samples().files.clone());
        journal::drop_unified_on_v1("linux", group.layout().version(), &mut asked.limits);
        keep_swap_disabled(&record.spec.resources, &mut asked.limits);
        let limits = group.without_unasked_swap(&record.spec.resources, &asked.limits);
        let change = match cgroup::prepare(&group, &limits) {
            Ok(change) => change,
            Err(error) => return self.failed(entry, &record, error.into()).map(|()| None),
        };
        let mut all = record.spec.clone();
        asked.apply_to(&mut all);
        let known = change.wanted.iter().all(|(knob, want)| record.applied.get(knob) == Some(want));
        if change.is_empty() && known && all == record.spec {
            self.resizes.count(Outcome::Unchanged);
            return Ok(None);
        }
        let score = all.resources.oom_score_adj;
        let score = score.filter(|_| score != record.spec.resources.oom_score_adj);
        Ok(Some(Prepared { record, group, journal: Journal { asked, change }, all, score }))
    }

    fn apply_update(&self, entry: &Entry<ContainerRecord>, prepared: Prepared) -> Result<(), UpdateError> {
        let Prepared { record, group, journal, all, score } = prepared;
        let dir = self.layout.container(&record.pod, &record.id);
        let outcome = journal::apply(&group, &dir, &journal, |settings| {
            let scores = score.map(|score| self.set_oom_score(&record, &group, score)).transpose()?;
            let recorded = entry.try_update(&self.layout, |record| {
                record.spec = all;
                record.applied.extend(settings);
            });
            if recorded.is_err()
                && let Some(scores) = scores
            {
                scores.roll_back();
            }
            Ok(recorded?)
        });
        match outcome {
            Ok(()) => self.resizes.count(Outcome::Applied),
            Err(error) => return self.failed(entry, &record, error),
        }
        Ok(())
    }

    /// A failure, unless the container ended, and was cleared away, while this was under way.
    fn failed(
        &self,
        entry: &Entry<ContainerRecord>,
        record: &ContainerRecord,
        error: ResizeError,
    ) -> Result<(), UpdateError> {
        if matches!(error, ResizeError::Apply(ApplyError::Gone(_))) && entry.get().state.pid().is_none() {
            return Ok(());
        }
        self.resizes.count_error(&error);
        Err(UpdateError::Resize { container: record.id.clone(), source: Box::new(error) })
    }

    /// Changes the score of the container's processes. An exec takes the score from the record.
    fn set_oom_score(
        &self,
        record: &ContainerRecord,
        group: &Cgroup,
        score: OomScoreAdj,
    ) -> Result<oom_score::Changed, ResizeError> {
        // What the first process has is what the others have too, unless a daemon was cut off just here.
        let from: Vec<OomScoreAdj> =
            record.state.pid().and_then(oom_score::of).into_iter().chain(record.spec.resources.oom_score_adj).collect();
        match oom_score::change(group, &from, score) {
            Err(error)
                if error.kind() == ErrorKind::Precondition && self.oom_policy(&record.pod) == OomPolicy::Restrict =>
            {
                tracing::warn!(error = model::error_chain::chain(&error), "the container keeps its OOM score");
                Ok(oom_score::Changed::default())
            }
            other => Ok(other?),
        }
    }

    /// That of the pod's handler, or the default one's where the pod's is gone.
    fn oom_policy(&self, pod: &PodId) -> OomPolicy {
        let handlers = &self.settings().handlers;
        let pod = self.pod(pod.as_str()).ok();
        let handler = pod.as_deref().and_then(|pod| self.handler(pod).ok());
        handler.as_ref().unwrap_or(handlers.default_one()).oom_score_adj
    }

    /// Brings a change that an earlier daemon was cut off in to an end, and the record with it.
    pub(crate) fn recover_container_resize(&self, mut record: ContainerRecord) -> ContainerRecord {
        let dir = self.layout.container(&record.pod, &record.id);
        if !Journal::<ContainerUpdate>::path(&dir).exists() {
            return record;
        }
        let group = self.cgroup(&record.cgroup);
        journal::recover(&group, &dir, |asked, settings| {
            self.record_container_resize(&mut record, &group, &asked, settings)
        });
        record
    }

    fn record_container_resize(
        &self,
        record: &mut ContainerRecord,
        group: &Cgroup,
        asked: &ContainerUpdate,
        settings: AppliedValues,
    ) -> Result<(), FileError> {
        let score = asked.limits.oom_score_adj;
        if let Some(score) = score.filter(|_| score != record.spec.resources.oom_score_adj) {
            match self.set_oom_score(record, group, score) {
                // Finished, not to be taken back.
                Ok(changed) => drop(changed),
                Err(error) => {
                    tracing::warn!(error = model::error_chain::chain(&error), "an OOM score could not be changed")
                }
            }
        }
        asked.apply_to(&mut record.spec);
        record.applied.extend(settings);
        safe_fs::overwrite_json(&self.layout.container(&record.pod, &record.id).join(CONTAINER_FILE), record)
    }
}

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, MemoryLimit};

    use super::*;

    #[test]
    fn who_may_not_swap_may_not_swap_with_more_memory_either() {
        let limits = |memory: Option<u64>, both: Option<u64>| LimitsPatch {
            memory: memory.map(|bytes| MemoryLimit::Bytes(Bytes(bytes))),
            memory_swap: both.map(|bytes| MemoryLimit::Bytes(Bytes(bytes))),
            ..LimitsPatch::default()
        };
        for (had, asked, becomes) in [
            ((Some(1), Some(1)), (Some(2), None), Some(2)),
            ((Some(1), Some(1)), (Some(2), Some(3)), Some(3)),
            ((Some(1), Some(1)), (None, None), None),
            ((Some(1), Some(2)), (Some(2), None), None),
            ((None, None), (Some(2), None), None),
        ] {
            let mut patch = limits(asked.0, asked.1);
            keep_swap_disabled(&limits(had.0, had.1), &mut patch);
            assert_eq!(patch, limits(asked.0, becomes), "{had:?} and then {asked:?}");
        }
    }
}
