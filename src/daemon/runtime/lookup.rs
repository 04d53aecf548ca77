//! Looking things up. Nothing here waits for anything.

use std::sync::Arc;

use cgroup::CurrentLimits;
use model::{ErrorClass, ErrorKind, PodId};

use super::Runtime;
use super::container::oom_score;
use crate::store::{AmbiguousId, ContainerRecord, Entry, PodRecord, Record};

#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("there is no pod {0:?}")]
    NoSuchPod(String),
    #[error("there is no container {0:?}")]
    NoSuchContainer(String),
    #[error(transparent)]
    Ambiguous(#[from] AmbiguousId),
}

impl ErrorClass for LookupError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchPod(_) | Self::NoSuchContainer(_) => ErrorKind::NotFound,
            Self::Ambiguous(_) => ErrorKind::Invalid,
        }
    }
}

impl Runtime {
    pub(super) fn pod_entry(&self, id: &str) -> Result<Arc<Entry<PodRecord>>, LookupError> {
        self.pods.find(id)?.ok_or_else(|| LookupError::NoSuchPod(id.to_owned()))
    }

    pub(super) fn container_entry(&self, id: &str) -> Result<Arc<Entry<ContainerRecord>>, LookupError> {
        self.containers.find(id)?.ok_or_else(|| LookupError::NoSuchContainer(id.to_owned()))
    }

    pub(crate) fn pod(&self, id: &str) -> Result<Arc<PodRecord>, LookupError> {
        Ok(self.pod_entry(id)?.get())
    }

    pub(crate) fn pods(&self) -> Vec<Arc<PodRecord>> {
        self.pods.all().iter().map(|entry| entry.get()).collect()
    }

    /// A container, and the limits that the kernel has in force for it.
    pub(crate) fn container_snapshot(
        &self,
        id: &str,
    ) -> Result<(Arc<ContainerRecord>, Option<CurrentLimits>), LookupError> {
        let entry = self.container_entry(id)?;
        let container = entry.get();
        let now = self.limits(&entry, &container);
        Ok((container, now))
    }

    pub(crate) fn container(&self, id: &str) -> Result<Arc<ContainerRecord>, LookupError> {
        Ok(self.container_entry(id)?.get())
    }

    pub(crate) fn containers(&self) -> Vec<Arc<ContainerRecord>> {
        self.containers.all().iter().map(|entry| entry.get()).collect()
    }

    pub(super) fn containers_of(&self, pod: &PodId) -> Vec<Arc<Entry<ContainerRecord>>> {
        self.containers.all().into_iter().filter(|entry| entry.get().pod == *pod).collect()
    }

    /// The limits that the kernel has in force for a container; none when it has no cgroup any more.
    ///
    /// What somebody else changed is counted and logged, once.
    pub(super) fn limits(&self, entry: &Entry<ContainerRecord>, container: &ContainerRecord) -> Option<CurrentLimits> {
        let pid = container.state.pid()?;
        let cgroup = self.cgroup(&container.cgroup).ok()?.with_file_cache(entry.samples().files.clone());
        let mut now = cgroup.observe(&container.applied).ok()?;
        now.observed.oom_score_adj = oom_score::of(pid);
        self.record_drift(entry, container, &mut now);
        Some(now)
    }

    /// Takes note of what somebody else changed. While crisp itself is changing it, nobody can tell who it was: then nothing
    /// is said, and the next look will show.
    fn record_drift<R: Record>(&self, entry: &Entry<R>, seen: &R, now: &mut CurrentLimits) {
        if !now.drift.is_empty() && !entry.is_current(seen) {
            now.drift.clear();
            return;
        }
        self.resizes.found(seen.id(), &now.drift);
    }

    /// The limits that the kernel has in force for a whole pod, whoever owns its cgroup.
    pub(super) fn limits_of_pod(&self, pod: &PodRecord) -> Option<CurrentLimits> {
        let mut now = self.cgroup(&pod.cgroup.path).ok()?.observe(&pod.applied).ok()?;
        if let Ok(entry) = self.pod_entry(pod.id.as_str()) {
            self.record_drift(&entry, pod, &mut now);
        }
        Some(now)
    }
}
