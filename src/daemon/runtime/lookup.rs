//! Lookups of pods and containers. None of them waits.

use std::path::PathBuf;
use std::sync::Arc;

use cgroup::CurrentLimits;
use model::{ContainerId, ErrorClass, ErrorKind, PodId};
use tracing::Span;

use super::Runtime;
use super::container::oom_score;
use crate::store::{AmbiguousId, ContainerRecord, Entry, PodRecord, Record, Unreadable};

#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("pod {0:?} in the request not found: it was removed, or this daemon did not create it")]
    NoSuchPod(String),
    #[error("container {0:?} in the request not found: it was removed, or this daemon did not create it")]
    NoSuchContainer(String),
    #[error(transparent)]
    Ambiguous(#[from] AmbiguousId),
    #[error("{what} {id} can only be listed, stopped and removed: its record is unreadable: {why}")]
    Unreadable { what: &'static str, id: String, why: Arc<Unreadable> },
    #[error("{what} {id} is being created or removed, try again later: {} exists", dir.display())]
    Unlisted { what: &'static str, id: String, dir: PathBuf },
}

impl ErrorClass for LookupError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchPod(_) | Self::NoSuchContainer(_) => ErrorKind::NotFound,
            Self::Ambiguous(_) => ErrorKind::Invalid,
            Self::Unreadable { .. } => ErrorKind::Precondition,
            Self::Unlisted { .. } => ErrorKind::Busy,
        }
    }
}

fn unreadable(what: &'static str, id: &str, why: &Arc<Unreadable>) -> LookupError {
    LookupError::Unreadable { what, id: id.to_owned(), why: Arc::clone(why) }
}

impl Runtime {
    pub(super) fn pod_entry(&self, id: &str) -> Result<Arc<Entry<PodRecord>>, LookupError> {
        self.pods.find(id)?.ok_or_else(|| self.missing_pod(id))
    }

    /// Returns a pod that can be changed and entered.
    pub(super) fn readable_pod(&self, id: &str) -> Result<Arc<Entry<PodRecord>>, LookupError> {
        let entry = self.pod_entry(id)?;
        match &entry.get().unreadable {
            Some(why) => Err(unreadable("pod", entry.get().id.as_str(), why)),
            None => Ok(entry),
        }
    }

    /// An id whose directory exists is never reported as not found, also while its pod is created or removed.
    fn missing_pod(&self, id: &str) -> LookupError {
        match PodId::try_from(id.to_owned()).map(|id| self.pod_dir(&id)) {
            Ok(dir) if dir.exists() => LookupError::Unlisted { what: "pod", id: id.to_owned(), dir },
            Ok(_) | Err(_) => LookupError::NoSuchPod(id.to_owned()),
        }
    }

    fn missing_container(&self, id: &str) -> LookupError {
        let Ok(container) = ContainerId::try_from(id.to_owned()) else {
            return LookupError::NoSuchContainer(id.to_owned());
        };
        let pods = safe_fs::list_names(&self.layout.pods()).unwrap_or_default();
        let mut pods = pods.into_iter().filter_map(|name| PodId::try_from(name).ok());
        match pods.find_map(|pod| Some(self.layout.container(&pod, &container)).filter(|dir| dir.exists())) {
            Some(dir) => LookupError::Unlisted { what: "container", id: id.to_owned(), dir },
            None => LookupError::NoSuchContainer(id.to_owned()),
        }
    }

    pub(super) fn container_entry(&self, id: &str) -> Result<Arc<Entry<ContainerRecord>>, LookupError> {
        self.containers.find(id)?.ok_or_else(|| self.missing_container(id))
    }

    /// Returns a container that can be changed and entered.
    pub(super) fn readable_container(&self, id: &str) -> Result<Arc<Entry<ContainerRecord>>, LookupError> {
        let entry = self.container_entry(id)?;
        match &entry.get().unreadable {
            Some(why) => Err(unreadable("container", entry.get().id.as_str(), why)),
            None => Ok(entry),
        }
    }

    pub(crate) fn pod(&self, id: &str) -> Result<Arc<PodRecord>, LookupError> {
        Ok(self.pod_entry(id)?.get())
    }

    pub(crate) fn pods(&self) -> Vec<Arc<PodRecord>> {
        self.pods.all().iter().map(|entry| entry.get()).collect()
    }

    /// Returns a container and its limits in the kernel.
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

    /// Returns the limits of a container in the kernel; `None` without a cgroup.
    ///
    /// A drift is counted and logged once.
    pub(super) fn limits(&self, entry: &Entry<ContainerRecord>, container: &ContainerRecord) -> Option<CurrentLimits> {
        let pid = container.state.pid()?;
        let mut now = self.cgroup_of(entry).observe(&container.applied).ok()?;
        now.observed.oom_score_adj = oom_score::of(pid);
        self.record_drift(&container.pod, entry, container, &mut now, || self.container_record_span(container));
        Some(now)
    }

    /// Counts a drift. During a change by crisp the origin of a value is unknown: nothing is
    /// counted, and the next read decides.
    fn record_drift<R: Record>(
        &self,
        pod: &PodId,
        entry: &Entry<R>,
        seen: &R,
        now: &mut CurrentLimits,
        span: impl FnOnce() -> Span,
    ) {
        if !now.drift.is_empty() && !entry.is_current(seen) {
            now.drift.clear();
            return;
        }
        let new = match now.drift.is_empty() {
            true => self.resizes.found(seen.id(), &now.drift),
            false => span().in_scope(|| self.resizes.found(seen.id(), &now.drift)),
        };
        if !new.is_empty() {
            self.note_foreign_writes(pod, seen.id(), &new);
        }
    }

    /// Returns the limits of a pod's cgroup in the kernel, also if the client owns the cgroup.
    pub(super) fn limits_of_pod(&self, pod: &PodRecord) -> Option<CurrentLimits> {
        let entry = self.pod_entry(pod.id.as_str()).ok()?;
        let mut now = self.cgroup_of(&entry).observe(&pod.applied).ok()?;
        self.record_drift(&pod.id, &entry, pod, &mut now, || Self::pod_record_span(pod));
        Some(now)
    }
}
