//! The history of resizes: a bounded ring per pod, on disk beside its record, and a stream of new entries.
//!
//! An entry is appended after the journal is closed and before the request is answered. A daemon that is killed in
//! between, for some microseconds, loses the entry; one that is killed earlier leaves the journal, and the recovery
//! adds the entry. A history that cannot be written or read never fails a resize.

pub(crate) mod entry;
pub(crate) mod later;
pub(crate) mod query;
mod ring;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use model::PodId;
use sync::Mutex;
use tokio::sync::broadcast;

use self::entry::{HistoryEntry, HistoryItem, LaterFacts, Line};
use self::ring::{Bounds, Ring};
use super::finished::{FinishedResize, ResizeTarget};

/// Maximum entries that a follower may lag behind; beyond that it is disconnected.
const BEHIND: usize = 256;

/// An entry and its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodHistoryItem {
    pub(crate) pod: PodName,
    pub(crate) item: HistoryItem,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(crate) id: PodId,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl From<&ResizeTarget> for PodName {
    fn from(target: &ResizeTarget) -> Self {
        let ResizeTarget { pod, namespace, pod_name, uid, container: _ } = target;
        Self { id: pod.clone(), namespace: namespace.clone(), name: pod_name.clone(), uid: uid.clone() }
    }
}

/// The histories of all pods.
#[derive(Debug)]
pub(crate) struct History {
    bounds: Bounds,
    pods: Mutex<HashMap<PodId, Arc<Mutex<Ring>>>>,
    /// Bytes of all files.
    bytes: AtomicU64,
    /// Whether the last append failed: each failure after a success is logged.
    failing: AtomicBool,
    /// `None` when the daemon exits.
    followers: Mutex<Option<broadcast::Sender<Arc<PodHistoryItem>>>>,
}

impl Default for History {
    fn default() -> Self {
        Self::new(Bounds::default())
    }
}

impl History {
    fn new(bounds: Bounds) -> Self {
        let followers = Mutex::new(Some(broadcast::Sender::new(BEHIND)));
        Self { bounds, pods: Mutex::default(), bytes: AtomicU64::new(0), failing: AtomicBool::new(false), followers }
    }

    /// Adds a finished resize of a pod with this directory.
    pub(crate) fn add(&self, resize: &FinishedResize, dir: PathBuf) {
        let line = Line::Resize(HistoryEntry::new(resize));
        let written = self.with_ring(&resize.target.pod, dir, |ring| {
            ring.last = entry::nanos(resize.began);
            ring.append(&line, self.bounds)
        });
        self.note(&resize.target.pod, written);
        if let Line::Resize(entry) = line {
            self.publish(|| PodHistoryItem { pod: PodName::from(&resize.target), item: entry.into() });
        }
        self.keep_within_bounds();
    }

    /// Adds facts to an entry, and publishes it with them.
    pub(crate) fn add_later(&self, pod: &PodName, dir: PathBuf, later: LaterFacts) {
        let of = later.of;
        let (written, items) = self.with_ring(&pod.id, dir, |ring| {
            let written = ring.append(&Line::Later(later), self.bounds);
            (written, if self.is_followed() { ring.read(self.bounds) } else { Vec::new() })
        });
        self.note(&pod.id, written);
        if let Some(item) = items.into_iter().find(|item| item.entry.began_ns == of) {
            self.publish(|| PodHistoryItem { pod: pod.clone(), item });
        }
        self.keep_within_bounds();
    }

    /// Returns the newest entries of a pod with this directory, the oldest first.
    pub(crate) fn read(&self, pod: &PodId, dir: PathBuf) -> Vec<HistoryItem> {
        self.with_ring(pod, dir, |ring| ring.read(self.bounds))
    }

    /// Forgets a pod, whose directory was removed.
    pub(crate) fn forget(&self, pod: &PodId) {
        if let Some(ring) = self.pods.lock().remove(pod) {
            self.bytes.fetch_sub(ring.lock().bytes(), Ordering::Relaxed);
        }
    }

    /// Returns new entries, and entries with new facts; `None` when the daemon exits.
    pub(crate) fn follow(&self) -> Option<broadcast::Receiver<Arc<PodHistoryItem>>> {
        self.followers.lock().as_ref().map(broadcast::Sender::subscribe)
    }

    /// Ends the streams of all followers.
    pub(crate) fn close(&self) {
        *self.followers.lock() = None;
    }

    fn is_followed(&self) -> bool {
        self.followers.lock().as_ref().is_some_and(|sender| sender.receiver_count() > 0)
    }

    fn publish(&self, item: impl FnOnce() -> PodHistoryItem) {
        let followers = self.followers.lock();
        if let Some(sender) = followers.as_ref().filter(|sender| sender.receiver_count() > 0) {
            // Fails if the last follower has just disconnected.
            sender.send(Arc::new(item())).ok();
        }
    }

    /// Registers a pod with this directory.
    pub(crate) fn register(&self, pod: &PodId, dir: PathBuf) {
        self.ring(pod, dir);
    }

    fn ring(&self, pod: &PodId, dir: PathBuf) -> Arc<Mutex<Ring>> {
        let mut pods = self.pods.lock();
        if let Some(ring) = pods.get(pod) {
            return Arc::clone(ring);
        }
        let ring = Ring::open(dir);
        self.bytes.fetch_add(ring.bytes(), Ordering::Relaxed);
        let ring = Arc::new(Mutex::new(ring));
        pods.insert(pod.clone(), Arc::clone(&ring));
        ring
    }

    /// Reads or changes the files of a pod, and counts their bytes.
    fn with_ring<T>(&self, pod: &PodId, dir: PathBuf, work: impl FnOnce(&mut Ring) -> T) -> T {
        let ring = self.ring(pod, dir);
        let mut ring = ring.lock();
        let before = ring.bytes();
        let done = work(&mut ring);
        // Wraps, so that it also subtracts.
        self.bytes.fetch_add(ring.bytes().wrapping_sub(before), Ordering::Relaxed);
        done
    }

    fn note(&self, pod: &PodId, written: io::Result<()>) {
        let Err(error) = written else { return self.failing.store(false, Ordering::Relaxed) };
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(%pod, %error, "cannot write the history of the pod's resizes; `crisp history` lacks entries, limits are unaffected");
        }
    }

    /// Removes the oldest files until all histories together fit.
    fn keep_within_bounds(&self) {
        if self.bytes.load(Ordering::Relaxed) <= self.bounds.node_bytes {
            return;
        }
        let pods = self.pods.lock();
        while self.bytes.load(Ordering::Relaxed) > self.bounds.node_bytes {
            let oldest = pods.values().filter(|ring| ring.lock().bytes() > 0).min_by_key(|ring| {
                let ring = ring.lock();
                (!ring.has_older(), ring.last)
            });
            let Some(oldest) = oldest else { return };
            let mut ring = oldest.lock();
            let before = ring.bytes();
            if let Err(error) = ring.remove_oldest() {
                return tracing::warn!(%error, "cannot remove the oldest history of resizes; the files use more disk space than intended");
            }
            self.bytes.fetch_sub(before - ring.bytes(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use cgroup::Knob;
    use tokio::sync::broadcast::error::TryRecvError;

    use super::*;
    use crate::runtime::resize::caller::Caller;
    use crate::runtime::resize::finished::FileChange;
    use crate::runtime::resize::outcomes::Outcome;

    fn pod(number: u8) -> PodId {
        PodId::from_bytes([number; 32])
    }

    fn resize(number: u8, began: u64) -> FinishedResize {
        let knob = Knob::MEMORY_MAX;
        FinishedResize {
            began: SystemTime::UNIX_EPOCH + Duration::from_nanos(began),
            duration: Duration::from_micros(5),
            target: ResizeTarget::new(pod(number), None, None),
            caller: Caller::default(),
            files: vec![FileChange { old: knob.value("4096"), new: knob.value(began.to_string()), knob }],
            oom_score_adj: None,
            outcome: Outcome::Applied,
            error: None,
            reclaimed: None,
        }
    }

    fn began(items: &[HistoryItem]) -> Vec<u64> {
        items.iter().map(|item| item.entry.began_ns).collect()
    }

    #[test]
    fn all_histories_have_one_limit_and_the_oldest_are_removed_first() {
        let root = tempfile::tempdir().unwrap();
        let history = History::new(Bounds { entries: 2, file_bytes: 4096, node_bytes: 1000 });
        let dir = |number: u8| {
            let dir = root.path().join(number.to_string());
            std::fs::create_dir_all(&dir).unwrap();
            dir
        };
        for at in 0..40_u64 {
            let number = u8::try_from(at / 8).unwrap();
            history.add(&resize(number, at), dir(number));
            let used: u64 = (0..5)
                .flat_map(|number| std::fs::read_dir(dir(number)).unwrap())
                .map(|file| file.unwrap().metadata().unwrap().len())
                .sum();
            assert!(used <= 1000, "{used} bytes after entry {at}");
        }
        assert_eq!(began(&history.read(&pod(4), dir(4))), [38, 39]);
        assert!(history.read(&pod(0), dir(0)).is_empty());
    }

    #[test]
    fn a_follower_gets_new_entries_and_later_facts_and_a_slow_one_the_number_of_lost_ones() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::default();
        history.add(&resize(1, 1), dir.path().to_owned());
        let (mut quick, mut slow) = (history.follow().unwrap(), history.follow().unwrap());
        history.add(&resize(1, 2), dir.path().to_owned());
        assert_eq!(quick.try_recv().unwrap().item.entry.began_ns, 2);
        let name = PodName::from(&resize(1, 2).target);
        history.add_later(
            &name,
            dir.path().to_owned(),
            LaterFacts { of: 1, oom_kills: Some(3), ..LaterFacts::default() },
        );
        let item = quick.try_recv().unwrap().item.clone();
        assert_eq!((item.entry.began_ns, item.oom_kills), (1, 3));
        for at in 0..300 {
            history.add(&resize(1, at), dir.path().to_owned());
        }
        assert!(matches!(slow.try_recv(), Err(TryRecvError::Lagged(46))), "302 entries, room for 256");
        history.close();
        assert!(history.follow().is_none());
    }

    #[test]
    fn a_history_that_cannot_be_written_affects_no_resize() {
        let history = History::default();
        history.add(&resize(1, 1), PathBuf::from("/nonexistent"));
        assert!(history.read(&pod(1), PathBuf::from("/nonexistent")).is_empty());
    }
}
