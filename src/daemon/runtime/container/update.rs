//! UpdateContainerResources: see [`crate::runtime::resize`] for the transaction.

use std::sync::Arc;

use cgroup::{AppliedValues, Cgroup};
use config::OomPolicy;
use model::error_chain::chain;
use model::resources::{LimitsPatch, OomScoreAdj};
use model::{ContainerUpdate, ErrorClass as _, ErrorKind, PodId};

use super::oom_score;
use crate::runtime::lifecycle_steps::Step;
use crate::runtime::resize::caller::Caller;
use crate::runtime::resize::finished::{ContainerTarget, ResizeTarget};
use crate::runtime::resize::journal;
use crate::runtime::resize::journal::ResizeError;
use crate::runtime::resize::transaction::{Resizable, UpdateError};
use crate::runtime::{LookupError, Runtime};
use crate::store::ContainerRecord;

/// Keeps swap disabled if only the memory limit of a container changes that may not swap: its limit of
/// memory equals that of memory and swap. On v1 the old swap limit would reject the change or allow swap.
fn keep_swap_disabled(had: &LimitsPatch, asked: &mut LimitsPatch) {
    let limited = had.memory.is_some_and(|memory| memory.bytes().is_some());
    if asked.memory.is_some() && asked.memory_swap.is_none() && limited && had.memory == had.memory_swap {
        asked.memory_swap = asked.memory;
    }
}

/// Returns the score of the updated record if it differs.
fn new_score(record: &ContainerRecord, updated: &ContainerRecord) -> Option<OomScoreAdj> {
    let score = updated.spec.resources.oom_score_adj;
    score.filter(|_| score != record.spec.resources.oom_score_adj)
}

impl Resizable for ContainerRecord {
    type Update = ContainerUpdate;
    const WHAT: &'static str = "container";

    fn limits(&self, update: &mut ContainerUpdate, group: &Cgroup) -> LimitsPatch {
        journal::drop_unified_on_v1("linux", group.layout().version(), &mut update.limits);
        keep_swap_disabled(&self.spec.resources, &mut update.limits);
        group.without_unasked_swap(&self.spec.resources, &update.limits)
    }

    fn apply_update(&mut self, update: &ContainerUpdate) {
        update.apply_to(&mut self.spec);
    }

    fn applied(&self) -> &AppliedValues {
        &self.applied
    }

    fn applied_mut(&mut self) -> &mut AppliedValues {
        &mut self.applied
    }

    fn oom_score_adj(&self) -> Option<OomScoreAdj> {
        self.spec.resources.oom_score_adj
    }

    fn target(&self, runtime: &Runtime) -> ResizeTarget {
        let container = ContainerTarget { id: self.id.clone(), name: self.spec.meta.name.clone() };
        let meta = runtime.pod(self.pod.as_str()).map(|pod| pod.spec.meta.clone());
        ResizeTarget::new(self.pod.clone(), meta.ok(), Some(container))
    }

    fn changes_processes(&self, updated: &Self) -> bool {
        new_score(self, updated).is_some()
    }

    /// Changes the score of the container's processes. An exec takes the score from the record.
    fn change_processes(
        &self,
        runtime: &Runtime,
        group: &Cgroup,
        updated: &Self,
    ) -> Result<oom_score::Changed, ResizeError> {
        let Some(score) = new_score(self, updated) else { return Ok(oom_score::Changed::default()) };
        // The first process has the score of the others, unless an earlier daemon was killed while it changed them.
        let first = self.state.pid().and_then(oom_score::of);
        let from: Vec<OomScoreAdj> = first.into_iter().chain(self.spec.resources.oom_score_adj).collect();
        match oom_score::change(group, &from, score) {
            Err(error)
                if error.kind() == ErrorKind::Precondition && runtime.oom_policy(&self.pod) == OomPolicy::Restrict =>
            {
                tracing::warn!(
                    error = chain(&error),
                    "the daemon lacks the privilege to set the requested oom_score_adj; the container keeps its OOM score"
                );
                Ok(oom_score::Changed::default())
            }
            other => Ok(other?),
        }
    }

    fn may_lack_cgroup(&self) -> bool {
        self.state.pid().is_none()
    }

    fn step<'a>(&'a self, update: &'a ContainerUpdate) -> Option<Step<'a>> {
        Some(Step::UpdateContainer(self, update))
    }
}

impl Runtime {
    /// Changes the resources of a container. For a container that has exited it does nothing and
    /// succeeds: the container may have exited during the request.
    pub(crate) async fn update(
        self: &Arc<Self>,
        id: &str,
        update: ContainerUpdate,
        caller: Caller,
    ) -> Result<(), UpdateError> {
        let entry = self.readable_container(id)?;
        let _turn = entry.lock_resources().await;
        if !self.containers.has(&entry) {
            return Err(LookupError::NoSuchContainer(id.to_owned()).into());
        }
        if entry.get().state.pid().is_none() {
            return Ok(());
        }
        let outcome = self.resize(&entry, update, caller).await;
        self.release_if_ended(&entry);
        outcome
    }

    /// Returns the policy of the pod's handler, or of the default handler if the pod's no longer exists.
    fn oom_policy(&self, pod: &PodId) -> OomPolicy {
        let handlers = &self.settings().handlers;
        let pod = self.pod(pod.as_str()).ok();
        let handler = pod.as_deref().and_then(|pod| self.handler(pod).ok());
        handler.as_ref().unwrap_or(handlers.default_one()).oom_score_adj
    }
}

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, MemoryLimit};

    use super::*;

    #[test]
    fn raising_memory_alone_keeps_swap_disabled() {
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
