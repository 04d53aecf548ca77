//! GetContainerEvents: what becomes of pods and containers, told as it happens.
//!
//! Nobody calls out events one by one. Whoever changed a record says so, and what was not told yet follows from where it
//! stands now and what was told last (`EventCursor`): so each moment is told once and in order, whichever
//! way it came about.

mod hub;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use cgroup::CurrentLimits;
use model::{ContainerState, PodId, PodState};

use super::Runtime;
use crate::store::{ContainerRecord, Entry, LifecycleStep, PodRecord};

pub(crate) use hub::{EventHub, Subscription};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    Created,
    Started,
    Stopped,
    Deleted,
}

/// Something that happened to a container, or to a pod itself.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) kind: EventKind,
    pub(crate) at: SystemTime,
    /// The pod then; none where it was gone already.
    pub(crate) pod: Option<Arc<PodRecord>>,
    /// All its containers then.
    pub(crate) containers: Vec<ContainerSnapshot>,
}

/// A container, and the limits that the kernel has in force for it.
#[derive(Debug)]
pub(crate) struct ContainerSnapshot {
    pub(crate) record: Arc<ContainerRecord>,
    pub(crate) limits: Option<Arc<CurrentLimits>>,
}

impl From<LifecycleStep> for EventKind {
    fn from(moment: LifecycleStep) -> Self {
        match moment {
            LifecycleStep::Created => Self::Created,
            LifecycleStep::Started => Self::Started,
            LifecycleStep::Stopped => Self::Stopped,
        }
    }
}

/// Where a container stands, and whether its program ever ran.
fn reached(phase: &ContainerState) -> (LifecycleStep, bool) {
    match phase {
        ContainerState::Created { .. } => (LifecycleStep::Created, false),
        ContainerState::Running { .. } => (LifecycleStep::Started, true),
        ContainerState::Exited { started, .. } => (LifecycleStep::Stopped, started.is_some()),
    }
}

fn pod_reached(phase: PodState) -> LifecycleStep {
    match phase {
        PodState::Ready | PodState::Unreadable => LifecycleStep::Started,
        PodState::NotReady => LifecycleStep::Stopped,
    }
}

impl Runtime {
    /// Those who follow events.
    pub(crate) fn events(&self) -> &EventHub {
        &self.events
    }

    /// Tells what became of a container since it was told of last.
    pub(super) fn publish_container_events(&self, entry: &Entry<ContainerRecord>) {
        let mut told = entry.samples().told.lock();
        let record = entry.get();
        let (moment, ran) = reached(&record.state);
        for moment in told.pending(moment, ran) {
            self.publish(moment.into(), record.id.as_str(), &record.pod, None);
        }
    }

    /// The same of a pod.
    pub(super) fn publish_pod_events(&self, entry: &Entry<PodRecord>) {
        let mut told = entry.samples().told.lock();
        let record = entry.get();
        for moment in told.pending(pod_reached(record.state), true) {
            self.publish(moment.into(), record.id.as_str(), &record.id, Some(&record));
        }
    }

    pub(super) fn publish_container_removed(&self, record: &ContainerRecord) {
        self.publish(EventKind::Deleted, record.id.as_str(), &record.pod, None);
    }

    pub(super) fn publish_pod_removed(&self, record: &Arc<PodRecord>) {
        self.publish(EventKind::Deleted, record.id.as_str(), &record.id, Some(record));
    }

    /// What a daemon before this one told, or could have.
    pub(super) fn mark_published(container: &Entry<ContainerRecord>) {
        container.samples().told.advance_to(reached(&container.get().state).0);
    }

    pub(super) fn mark_pod_published(pod: &Entry<PodRecord>) {
        pod.samples().told.advance_to(pod_reached(pod.get().state));
    }

    /// All containers of a pod, as ContainerStatus would show each.
    pub(crate) fn containers_now(&self, pod: &PodId) -> Vec<ContainerSnapshot> {
        let now = |entry: Arc<Entry<ContainerRecord>>| {
            let record = entry.get();
            ContainerSnapshot { limits: self.limits(&entry, &record).map(Arc::new), record }
        };
        self.containers_of(pod).into_iter().map(now).collect()
    }

    /// The same for who is told of something that happened to one of them: reading all limits again for each event of a burst
    /// would take longer the more there are.
    fn containers_with_recent_limits(&self, pod: &PodId) -> Vec<ContainerSnapshot> {
        let at = Instant::now();
        let lately = |entry: Arc<Entry<ContainerRecord>>| {
            let record = entry.get();
            let limits = entry.samples().limits.get_recent(at, &record, || self.limits(&entry, &record));
            ContainerSnapshot { limits, record }
        };
        self.containers_of(pod).into_iter().map(lately).collect()
    }

    /// Nobody needs to hear for ever what happened before the first listener came.
    pub(super) fn forget_early_events(self: &Arc<Self>) {
        let runtime = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(hub::EARLY).await;
            if let Some(runtime) = runtime.upgrade() {
                runtime.events.forget_early();
            }
        });
    }

    fn publish(&self, kind: EventKind, id: &str, pod: &PodId, known: Option<&Arc<PodRecord>>) {
        self.events.publish(kind, || Event {
            id: id.to_owned(),
            kind,
            at: SystemTime::now(),
            pod: known.cloned().or_else(|| self.pod(pod.as_str()).ok()),
            containers: self.containers_with_recent_limits(pod),
        });
    }
}
