//! GetContainerEvents: publishes the state changes of pods and containers.
//!
//! After every record change `publish_*_events` compares the record's state with the last published
//! event (`EventCursor`), and publishes the missing ones: so each event is published once and in
//! order.

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

/// An event of a container, or of the pod's sandbox.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) kind: EventKind,
    pub(crate) at: SystemTime,
    /// The pod at that time; `None` if it was removed already.
    pub(crate) pod: Option<Arc<PodRecord>>,
    /// All its containers at that time.
    pub(crate) containers: Vec<ContainerSnapshot>,
}

/// A container and its limits in the kernel.
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

/// Returns a container's lifecycle step, and whether its program ever ran.
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
    /// The event clients.
    pub(crate) fn events(&self) -> &EventHub {
        &self.events
    }

    /// Publishes the events of a container since the last published one.
    pub(super) fn publish_container_events(&self, entry: &Entry<ContainerRecord>) {
        let mut reported = entry.samples().reported.lock();
        let record = entry.get();
        let (moment, ran) = reached(&record.state);
        for moment in reported.pending(moment, ran) {
            self.publish(moment.into(), record.id.as_str(), &record.pod, None);
        }
    }

    /// Publishes the events of a pod since the last published one.
    pub(super) fn publish_pod_events(&self, entry: &Entry<PodRecord>) {
        let mut reported = entry.samples().reported.lock();
        let record = entry.get();
        for moment in reported.pending(pod_reached(record.state), true) {
            self.publish(moment.into(), record.id.as_str(), &record.id, Some(&record));
        }
    }

    pub(super) fn publish_container_removed(&self, record: &ContainerRecord) {
        self.publish(EventKind::Deleted, record.id.as_str(), &record.pod, None);
    }

    pub(super) fn publish_pod_removed(&self, record: &Arc<PodRecord>) {
        self.publish(EventKind::Deleted, record.id.as_str(), &record.id, Some(record));
    }

    /// Marks the events before this daemon's start as published.
    pub(super) fn mark_published(container: &Entry<ContainerRecord>) {
        container.samples().reported.advance_to(reached(&container.get().state).0);
    }

    pub(super) fn mark_pod_published(pod: &Entry<PodRecord>) {
        pod.samples().reported.advance_to(pod_reached(pod.get().state));
    }

    /// Returns all containers of a pod, as in ContainerStatus.
    pub(crate) fn containers_now(&self, pod: &PodId) -> Vec<ContainerSnapshot> {
        let now = |entry: Arc<Entry<ContainerRecord>>| {
            let record = entry.get();
            ContainerSnapshot { limits: self.limits(&entry, &record).map(Arc::new), record }
        };
        self.containers_of(pod).into_iter().map(now).collect()
    }

    /// Returns all containers of a pod for an event. Limits may be up to a second old: reading all
    /// of them for each event of a burst would take quadratic time.
    fn containers_with_recent_limits(&self, pod: &PodId) -> Vec<ContainerSnapshot> {
        let at = Instant::now();
        let lately = |entry: Arc<Entry<ContainerRecord>>| {
            let record = entry.get();
            let limits = entry.samples().limits.get_recent(at, &record, || self.limits(&entry, &record));
            ContainerSnapshot { limits, record }
        };
        self.containers_of(pod).into_iter().map(lately).collect()
    }

    /// Drops exits before the first subscription after some time.
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
