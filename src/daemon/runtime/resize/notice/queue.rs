//! Containers that were resized and have notices to get: at most one delivery at a time for each, and the last resize
//! is never missed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use model::ContainerId;
use sync::Mutex;
use tokio::sync::Notify;

/// The kinds of notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoticeKind {
    File,
    Signal,
    Hook,
}

impl NoticeKind {
    const ALL: [Self; 3] = [Self::File, Self::Signal, Self::Hook];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Signal => "signal",
            Self::Hook => "hook",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Due,
    Running,
    /// The container was resized again during the delivery.
    RunningAndDue,
}

/// The deliveries by container, and counts of notices since the daemon's start.
#[derive(Debug, Default)]
pub(crate) struct ResizeNotices {
    deliveries: Mutex<HashMap<ContainerId, Delivery>>,
    pub(super) added: Notify,
    sent: [AtomicU64; NoticeKind::ALL.len()],
    failed: [AtomicU64; NoticeKind::ALL.len()],
}

impl ResizeNotices {
    pub(super) fn add(&self, container: &ContainerId) {
        let mut deliveries = self.deliveries.lock();
        let delivery = deliveries.entry(container.clone()).or_insert(Delivery::Due);
        if *delivery == Delivery::Running {
            *delivery = Delivery::RunningAndDue;
        }
        drop(deliveries);
        self.added.notify_one();
    }

    /// Returns the containers whose delivery is due and may begin; each must be ended by [`Self::end`].
    pub(super) fn begin(&self) -> Vec<ContainerId> {
        let mut deliveries = self.deliveries.lock();
        let due = deliveries.iter_mut().filter(|(_, delivery)| **delivery == Delivery::Due);
        due.map(|(id, delivery)| {
            *delivery = Delivery::Running;
            id.clone()
        })
        .collect()
    }

    pub(super) fn end(&self, container: &ContainerId) {
        let mut deliveries = self.deliveries.lock();
        if deliveries.remove(container) == Some(Delivery::RunningAndDue) {
            deliveries.insert(container.clone(), Delivery::Due);
            self.added.notify_one();
        }
    }

    pub(super) fn count(&self, kind: NoticeKind, is_sent: bool) {
        let counts = if is_sent { &self.sent } else { &self.failed };
        if let Some(index) = NoticeKind::ALL.iter().position(|known| *known == kind) {
            counts[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the numbers of notices by kind and outcome.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        NoticeKind::ALL.into_iter().enumerate().flat_map(|(index, kind)| {
            [("sent", &self.sent), ("failed", &self.failed)]
                .map(|(outcome, counts)| (kind.name(), outcome, counts[index].load(Ordering::Relaxed)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_one_delivery_at_a_time_and_another_for_resizes_during_it() {
        let notices = ResizeNotices::default();
        let [one, other] = [1, 2].map(|byte| ContainerId::from_bytes([byte; 32]));
        notices.add(&one);
        notices.add(&one);
        assert_eq!(notices.begin(), std::slice::from_ref(&one));
        assert!(notices.begin().is_empty());
        for _ in 0..3 {
            notices.add(&one);
        }
        notices.add(&other);
        assert_eq!(notices.begin(), std::slice::from_ref(&other));
        notices.end(&other);
        notices.end(&one);
        assert_eq!(notices.begin(), std::slice::from_ref(&one));
        notices.end(&one);
        assert!(notices.begin().is_empty() && notices.deliveries.lock().is_empty());
    }
}
