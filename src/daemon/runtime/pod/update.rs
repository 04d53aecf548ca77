//! UpdatePodSandboxResources.

use std::sync::Arc;

use cgroup::{ApplyError, Cgroup};
use model::{ErrorClass, ErrorKind, PodId, PodSpec, PodUpdate};

use super::limits;
use crate::runtime::resize::journal;
use crate::runtime::resize::journal::{Journal, ResizeError};
use crate::runtime::resize::outcomes::Outcome;
use crate::runtime::{LookupError, Runtime, blocking};
use crate::store::{Entry, POD_FILE, PodRecord};

#[derive(Debug, thiserror::Error)]
pub(crate) enum UpdatePodError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("changing the resources of pod {pod}")]
    Resize { pod: PodId, source: Box<ResizeError> },
}

impl ErrorClass for UpdatePodError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::Resize { source, .. } => source.kind(),
        }
    }
}

impl Runtime {
    /// Remembers what a pod may use as a whole, and sizes its cgroup where that is ours: a client that gave one sizes it
    /// itself.
    pub(crate) async fn update_pod(self: &Arc<Self>, id: &str, asked: PodUpdate) -> Result<(), UpdatePodError> {
        let entry = self.readable_pod(id)?;
        let _turn = entry.lock_resources().await;
        if !self.pods.has(&entry) {
            return Err(LookupError::NoSuchPod(id.to_owned()).into());
        }
        let (runtime, pod) = (self.clone(), entry.clone());
        blocking(move || runtime.update_pod_now(&pod, asked)).await
    }

    fn update_pod_now(&self, entry: &Entry<PodRecord>, asked: PodUpdate) -> Result<(), UpdatePodError> {
        let record = entry.get();
        let mut all = record.spec.clone();
        asked.lay_over(&mut all);
        let failed = |source| UpdatePodError::Resize { pod: record.id.clone(), source: Box::new(source) };
        if !record.cgroup.ours {
            if all == record.spec {
                return Ok(());
            }
            let recorded = entry.try_update(&self.layout, |record| record.spec = all);
            return recorded.map_err(|e| failed(e.into()));
        }
        let group = self.cgroup(&record.cgroup.path);
        match self.resize_pod(entry, &record, &group, all, asked) {
            Ok(outcome) => self.resizes.count(outcome),
            // Stopped, and its cgroup is gone.
            Err(ResizeError::Apply(ApplyError::Gone(_))) => {}
            Err(source) => {
                self.resizes.count_error(&source);
                return Err(failed(source));
            }
        }
        Ok(())
    }

    fn resize_pod(
        &self,
        entry: &Entry<PodRecord>,
        record: &PodRecord,
        group: &Cgroup,
        all: PodSpec,
        asked: PodUpdate,
    ) -> Result<Outcome, ResizeError> {
        let mut limits = limits::of(&all);
        journal::drop_unified_on_v1("resources", group.layout().version(), &mut limits);
        let change = cgroup::prepare(group, &limits)?;
        if change.is_empty() && all == record.spec {
            return Ok(Outcome::Unchanged);
        }
        let journal = Journal { asked, change };
        journal::apply(group, &self.pod_dir(&record.id), &journal, |settings| {
            let recorded = entry.try_update(&self.layout, |record| {
                record.spec = all;
                record.applied.extend(settings);
            });
            Ok(recorded?)
        })?;
        Ok(Outcome::Applied)
    }

    /// Brings a change that an earlier daemon was cut off in to an end, and the record with it.
    pub(crate) fn recover_pod_resize(&self, mut record: PodRecord) -> PodRecord {
        let dir = self.pod_dir(&record.id);
        if !Journal::<PodUpdate>::path(&dir).exists() {
            return record;
        }
        let group = self.cgroup(&record.cgroup.path);
        journal::recover(&group, &dir, |asked: PodUpdate, settings| {
            asked.lay_over(&mut record.spec);
            record.applied.extend(settings);
            safe_fs::overwrite_json(&dir.join(POD_FILE), &record)
        });
        record
    }
}
