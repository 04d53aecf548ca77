//! GetContainerEvents: what becomes of pods and containers, told as it happens.
//!
//! Nobody calls out events one by one. Whoever changed a record says so, and what was not told yet follows from where it
//! stands now and what was told last (`Told`): so each moment is told once and in order, whichever
//! way it came about.

mod hub;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use cgroup::CurrentLimits;
use model::{ContainerState, PodId, PodState};

use super::Runtime;
use crate::store::{ContainerRecord, Entry, Moment, PodRecord};

pub(crate) use hub::{Hub, Listening};

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
    pub(crate) containers: Vec<ContainerNow>,
}

/// A container, and the limits that the kernel has in force for it.
#[derive(Debug)]
pub(crate) struct ContainerNow {
    pub(crate) record: Arc<ContainerRecord>,
    pub(crate) limits: Option<Arc<CurrentLimits>>,
}

impl From<Moment> for EventKind {
    fn from(moment: Moment) -> Self {
        match moment {
            Moment::Created => Self::Created,
            Moment::Started => Self::Started,
            Moment::Stopped => Self::Stopped,
        }
    }
}

/// Where a container stands, and whether its program ever ran.
fn reached(phase: &ContainerState) -> (Moment, bool) {
    match phase {
        ContainerState::Created { .. } => (Moment::Created, false),
        ContainerState::Running { .. } => (Moment::Started, true),
        ContainerState::Exited { started, .. } => (Moment::Stopped, started.is_some()),
        // Something of it may be there, but nobody waits for it any more.
        ContainerState::Unknown { .. } => (Moment::Stopped, false),
    }
}

fn pod_reached(phase: PodState) -> Moment {
    match phase {
        PodState::Ready => Moment::Started,
        PodState::NotReady => Moment::Stopped,
    }
}

impl Runtime {
    /// Those who follow events.
    pub(crate) fn events(&self) -> &Hub {
        &self.events
    }

    /// Tells what became of a container since it was told of last.
    pub(super) fn tell(&self, entry: &Entry<ContainerRecord>) {
        let mut told = entry.gauges().told.lock();
        let record = entry.look();
        let (moment, ran) = reached(&record.phase);
        for moment in told.news(moment, ran) {
            self.publish(moment.into(), record.id.as_str(), &record.pod, None);
        }
    }

    /// The same of a pod.
    pub(super) fn tell_pod(&self, entry: &Entry<PodRecord>) {
        let mut told = entry.gauges().told.lock();
        let record = entry.look();
        for moment in told.news(pod_reached(record.phase), true) {
            self.publish(moment.into(), record.id.as_str(), &record.id, Some(&record));
        }
    }

    pub(super) fn tell_removed(&self, record: &ContainerRecord) {
        self.publish(EventKind::Deleted, record.id.as_str(), &record.pod, None);
    }

    pub(super) fn tell_pod_removed(&self, record: &Arc<PodRecord>) {
        self.publish(EventKind::Deleted, record.id.as_str(), &record.id, Some(record));
    }

    /// What a daemon before this one told, or could have.
    pub(super) fn told_before(container: &Entry<ContainerRecord>) {
        container.gauges().told.skip_to(reached(&container.look().phase).0);
    }

    pub(super) fn told_pod_before(pod: &Entry<PodRecord>) {
        pod.gauges().told.skip_to(pod_reached(pod.look().phase));
    }

    /// All containers of a pod, as ContainerStatus would show each.
    pub(crate) fn containers_now(&self, pod: &PodId) -> Vec<ContainerNow> {
        let now = |entry: Arc<Entry<ContainerRecord>>| {
            let record = entry.look();
            ContainerNow { limits: self.limits(&entry, &record).map(Arc::new), record }
        };
        self.containers_of(pod).into_iter().map(now).collect()
    }

    /// The same for who is told of something that happened to one of them: reading all limits again for each event of a burst
    /// would take longer the more there are.
    fn containers_lately(&self, pod: &PodId) -> Vec<ContainerNow> {
        let at = Instant::now();
        let lately = |entry: Arc<Entry<ContainerRecord>>| {
            let record = entry.look();
            let limits = entry.gauges().limits.lately(at, &record, || self.limits(&entry, &record));
            ContainerNow { limits, record }
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
            containers: self.containers_lately(pod),
        });
    }
}
