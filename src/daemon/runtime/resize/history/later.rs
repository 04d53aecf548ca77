//! Facts that are found after a resize: foreign writes, and OOM kills and throttling in the minute after it.
//!
//! One task reads the counters of the pods and containers that were resized in the last minute; without any it sleeps.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cgroup::{Cgroup, Drift};
use model::{CgroupPath, PodId};
use sync::Mutex;
use tokio::sync::Notify;

use super::PodName;
use super::entry::{DRIFT_MAX, ForeignWrite, HistoryItem, LaterFacts, nanos, truncated};
use crate::runtime::resize::finished::FinishedResize;
use crate::runtime::{Runtime, blocking};
use crate::store::ContainerRecord;

/// How long a pod or container is watched after a resize.
const WATCHED: Duration = Duration::from_secs(60);
/// The pause between two readings of the counters.
const PAUSE: Duration = Duration::from_secs(5);
/// The first reading follows a resize after this time, so that one reading serves several resizes.
const FIRST: Duration = Duration::from_millis(5);
/// Maximum pods and containers that are watched at a time; more are not.
const TARGETS_MAX: usize = 256;

/// Counters of the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counters {
    oom_kills: u64,
    throttled_periods: u64,
}

impl Counters {
    fn read(group: &Cgroup) -> Self {
        Self {
            oom_kills: group.oom_kills().unwrap_or_default(),
            throttled_periods: group.throttled_periods().unwrap_or_default(),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            oom_kills: self.oom_kills.saturating_sub(before.oom_kills),
            throttled_periods: self.throttled_periods.saturating_sub(before.throttled_periods),
        }
    }
}

/// A pod or container in the minute after its last resize.
#[derive(Debug)]
struct Watched {
    pod: PodName,
    cgroup: CgroupPath,
    of: u64,
    until: Instant,
    /// The counters at the first reading.
    before: Option<Counters>,
    /// The difference that the history has.
    noted: Counters,
}

impl Watched {
    /// Returns the facts that the history does not have yet.
    fn compare(&mut self, now: Counters) -> Option<LaterFacts> {
        let since = now.since(*self.before.get_or_insert(now));
        let kills = since.oom_kills > self.noted.oom_kills;
        // Once, with the total of the minute: it may change at every reading.
        let throttled = self.until <= Instant::now() && since.throttled_periods > 0;
        if !kills && !throttled {
            return None;
        }
        self.noted = since;
        Some(LaterFacts {
            of: self.of,
            drift: Vec::new(),
            oom_kills: kills.then_some(since.oom_kills),
            throttled_periods: Some(since.throttled_periods).filter(|count| *count > 0),
        })
    }
}

/// The resizes of the last minute, by the ID of the pod or container.
#[derive(Debug, Default)]
pub(crate) struct WatchedResizes {
    targets: Mutex<HashMap<String, Watched>>,
    added: Notify,
}

impl WatchedResizes {
    /// Watches the target of an applied resize; an earlier resize of it is not watched any more.
    pub(crate) fn add(&self, resize: &FinishedResize, cgroup: &CgroupPath) {
        let mut targets = self.targets.lock();
        let id = resize.target.id();
        let of = nanos(resize.began);
        let until = Instant::now() + WATCHED;
        if let Some(known) = targets.get_mut(id) {
            (known.of, known.until, known.before, known.noted) = (of, until, None, Counters::default());
        } else if targets.len() < TARGETS_MAX {
            let noted = Counters::default();
            let pod = PodName::from(&resize.target);
            targets.insert(id.to_owned(), Watched { pod, cgroup: cgroup.clone(), of, until, before: None, noted });
        }
        self.added.notify_one();
    }

    fn is_empty(&self) -> bool {
        self.targets.lock().is_empty()
    }
}

impl Runtime {
    /// Reads the counters of recently resized pods and containers.
    pub(in crate::runtime) fn watch_after_resizes(self: &Arc<Self>) {
        let (runtime, watched) = (Arc::downgrade(self), Arc::clone(&self.watched));
        tokio::spawn(async move {
            loop {
                watched.added.notified().await;
                tokio::time::sleep(FIRST).await;
                while !watched.is_empty() {
                    let Some(runtime) = runtime.upgrade() else { return };
                    blocking(move || runtime.note_counters()).await;
                    // A new resize needs its first reading at once.
                    if tokio::time::timeout(PAUSE, watched.added.notified()).await.is_ok() {
                        tokio::time::sleep(FIRST).await;
                    }
                }
            }
        });
    }

    /// Adds OOM kills and throttling since the resizes of the last minute to the history.
    pub(crate) fn note_counters(&self) {
        let targets: Vec<(String, CgroupPath)> =
            self.watched.targets.lock().iter().map(|(id, watched)| (id.clone(), watched.cgroup.clone())).collect();
        // Read without the lock, which resizes need.
        let read: Vec<(String, Counters)> =
            targets.into_iter().map(|(id, cgroup)| (id, Counters::read(&self.cgroup(&cgroup)))).collect();
        let mut found: Vec<(PodName, LaterFacts)> = Vec::new();
        let mut watched = self.watched.targets.lock();
        for (id, now) in read {
            let Some(target) = watched.get_mut(&id) else { continue };
            found.extend(target.compare(now).map(|facts| (target.pod.clone(), facts)));
            if target.until <= Instant::now() {
                watched.remove(&id);
            }
        }
        drop(watched);
        for (pod, facts) in found {
            self.history.add_later(&pod, self.pod_dir(&pod.id), facts);
        }
    }

    /// Adds an OOM kill that ended a container to a resize in the minute before.
    pub(in crate::runtime) fn note_oom_exit(&self, container: &ContainerRecord, at: SystemTime) {
        let id = container.id.as_str();
        let Some((pod, item)) = self.last_applied(&container.pod, id) else { return };
        let ended = Duration::from_nanos(item.entry.began_ns) + Duration::from_micros(item.entry.duration_us);
        if Duration::from_nanos(nanos(at)).saturating_sub(ended) > WATCHED {
            return;
        }
        let mut kills = 1;
        if let Some(watched) = self.watched.targets.lock().get_mut(id) {
            let now = Counters::read(&self.cgroup(&watched.cgroup));
            let since = watched.before.map_or(0, |before| now.since(before).oom_kills);
            kills = since.max(1);
            watched.noted.oom_kills = kills;
        }
        let facts = LaterFacts { of: item.entry.began_ns, oom_kills: Some(kills), ..LaterFacts::default() };
        self.history.add_later(&pod, self.pod_dir(&pod.id), facts);
    }

    /// Adds foreign writes to the last applied resize of a pod or container.
    pub(in crate::runtime) fn note_foreign_writes(&self, pod: &PodId, id: &str, drift: &[Drift]) {
        let Some((pod, item)) = self.last_applied(pod, id) else { return };
        let at_ns = nanos(SystemTime::now());
        let write = |Drift { knob, found, .. }: &Drift| ForeignWrite {
            at_ns,
            file: knob.clone(),
            found: found.as_deref().map(truncated),
        };
        // After a restart of the daemon the last one is found again.
        let is_new = |write: &ForeignWrite| {
            item.drift
                .iter()
                .rev()
                .find(|known| known.file == write.file)
                .is_none_or(|known| known.found != write.found)
        };
        let room = DRIFT_MAX.saturating_sub(item.drift.len());
        let drift: Vec<ForeignWrite> = drift.iter().map(write).filter(is_new).take(room).collect();
        if !drift.is_empty() {
            let facts = LaterFacts { of: item.entry.began_ns, drift, ..LaterFacts::default() };
            self.history.add_later(&pod, self.pod_dir(&pod.id), facts);
        }
    }

    /// Returns the last applied resize of a pod or container.
    fn last_applied(&self, pod: &PodId, id: &str) -> Option<(PodName, HistoryItem)> {
        let record = self.pod(pod.as_str()).ok()?;
        let mut items = self.history.read(pod, self.pod_dir(pod)).into_iter().rev();
        let item = items.find(|item| item.entry.outcome == "applied" && item.entry.target_id(pod.as_str()) == id)?;
        Some((PodName::from(&*record), item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(until: Instant) -> Watched {
        let pod = PodName {
            id: PodId::from_bytes([1; 32]),
            namespace: String::new(),
            name: String::new(),
            uid: String::new(),
        };
        let cgroup = CgroupPath::new("/a").unwrap();
        Watched { pod, cgroup, of: 7, until, before: None, noted: Counters::default() }
    }

    fn counters(oom_kills: u64, throttled_periods: u64) -> Counters {
        Counters { oom_kills, throttled_periods }
    }

    #[test]
    fn kills_are_noted_when_they_are_found_and_throttling_at_the_end_of_the_minute() {
        let mut target = watched(Instant::now() + WATCHED);
        assert_eq!(target.compare(counters(3, 10)), None, "the counters before");
        assert_eq!(target.compare(counters(3, 15)), None);
        let facts = target.compare(counters(5, 16)).unwrap();
        assert_eq!((facts.of, facts.oom_kills, facts.throttled_periods), (7, Some(2), Some(6)));
        assert_eq!(target.compare(counters(5, 17)), None);
        target.until = Instant::now();
        let facts = target.compare(counters(5, 20)).unwrap();
        assert_eq!((facts.oom_kills, facts.throttled_periods), (None, Some(10)));
    }

    #[test]
    fn a_quiet_minute_adds_nothing() {
        let mut target = watched(Instant::now());
        assert_eq!(target.compare(counters(3, 10)), None);
        assert_eq!(target.compare(counters(3, 10)), None);
        assert_eq!(target.compare(counters(0, 0)), None, "the cgroup was removed");
    }
}
