//! Entries by id, for those who do and those who look.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cgroup::FileCache;
use safe_fs::FileError;
use serde::Serialize;
use sync::RwLock;
use tokio::sync::{Mutex, MutexGuard, watch};

use super::cpu_rate::CpuSamples;
use super::event_cursor::EventCursor;
use super::layout::Layout;
use super::record::{ContainerRecord, PodRecord};
use super::samples::{DiskSamples, LimitsCache};
use super::stop_waiters::StopWaiters;

/// A prefix that fits several ids.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is ambiguous: it matches several ids")]
pub(crate) struct AmbiguousId(String);

/// The record of a pod, in its directory.
pub(crate) const POD_FILE: &str = "pod.json";
/// That of a container.
pub(crate) const CONTAINER_FILE: &str = "container.json";

/// Something that is kept in a file.
pub(crate) trait Record: Serialize + Clone {
    /// What is kept beside it in memory, and only there.
    type Samples: Default + std::fmt::Debug;
    fn id(&self) -> &str;
    fn file(&self, layout: &Layout) -> PathBuf;
    /// Whether it may be written: not over a file that this daemon could not read.
    fn is_writable(&self) -> bool;
}

/// What is known of a pod from readings alone.
#[derive(Debug, Default)]
pub(crate) struct PodSamples {
    pub(crate) cpu: CpuSamples,
    pub(crate) told: EventCursor,
    pub(crate) ends: StopWaiters,
}

impl Record for PodRecord {
    type Samples = PodSamples;
    fn id(&self) -> &str {
        self.id.as_str()
    }
    fn file(&self, layout: &Layout) -> PathBuf {
        layout.pod(&self.id).join(POD_FILE)
    }
    fn is_writable(&self) -> bool {
        self.unreadable.is_none()
    }
}

/// What is known of a container from readings alone.
#[derive(Debug, Default)]
pub(crate) struct ContainerSamples {
    pub(crate) cpu: CpuSamples,
    pub(crate) disk: DiskSamples,
    pub(crate) limits: LimitsCache,
    pub(crate) files: Arc<FileCache>,
    pub(crate) told: EventCursor,
}

impl Record for ContainerRecord {
    type Samples = ContainerSamples;
    fn id(&self) -> &str {
        self.id.as_str()
    }
    fn file(&self, layout: &Layout) -> PathBuf {
        layout.container(&self.pod, &self.id).join(CONTAINER_FILE)
    }
    fn is_writable(&self) -> bool {
        self.unreadable.is_none()
    }
}

/// One lock for doing, one cell for looking: status never queues behind a slow stop.
#[derive(Debug)]
pub(crate) struct Entry<R: Record> {
    work: Mutex<()>,
    resizing: Mutex<()>,
    /// Held while a changed record is written.
    writing: sync::Mutex<()>,
    seen: watch::Sender<Arc<R>>,
    gauges: R::Samples,
}

impl<R: Record> Entry<R> {
    pub(crate) fn new(record: R) -> Self {
        let seen = watch::Sender::new(Arc::new(record));
        Self {
            work: Mutex::new(()),
            resizing: Mutex::new(()),
            writing: sync::Mutex::new(()),
            seen,
            gauges: R::Samples::default(),
        }
    }

    /// What is true now.
    pub(crate) fn get(&self) -> Arc<R> {
        self.seen.borrow().clone()
    }

    /// What was read of it last.
    pub(crate) fn samples(&self) -> &R::Samples {
        &self.gauges
    }

    /// Waits for one's turn to change it by more than a step.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, ()> {
        self.work.lock().await
    }

    /// Waits for one's turn to change what it may use: apart from other work, since a slow stop is no reason to wait.
    pub(crate) async fn lock_resources(&self) -> MutexGuard<'_, ()> {
        self.resizing.lock().await
    }

    /// Whether `seen` is what it is, and nobody is changing what it may use.
    pub(crate) fn is_current(&self, seen: &R) -> bool {
        self.resizing.try_lock().is_ok() && std::ptr::eq(&*self.get(), seen)
    }

    /// Changes the record and writes it, as one step; a change that cannot be written is not made.
    pub(crate) fn try_update(&self, layout: &Layout, change: impl FnOnce(&mut R)) -> Result<(), FileError> {
        self.change(layout, change, |written| written.is_ok())
    }

    /// Changes the record and writes it, as one step; the change is seen even when writing fails.
    pub(crate) fn update(&self, layout: &Layout, change: impl FnOnce(&mut R)) -> Result<(), FileError> {
        self.change(layout, change, |_| true)
    }

    /// Nobody who looks waits for the disk: only those who change it wait for each other.
    fn change(
        &self,
        layout: &Layout,
        change: impl FnOnce(&mut R),
        show: impl FnOnce(&Result<(), FileError>) -> bool,
    ) -> Result<(), FileError> {
        let _turn = self.writing.lock();
        let mut record = R::clone(&self.get());
        change(&mut record);
        let written =
            if record.is_writable() { safe_fs::overwrite_json(&record.file(layout), &record) } else { Ok(()) };
        if show(&written) {
            self.seen.send_replace(Arc::new(record));
        }
        written
    }

    /// Waits until `done` is true of the record.
    pub(crate) async fn wait_until(&self, mut done: impl FnMut(&R) -> bool) {
        // The sender is in self, so the channel cannot close.
        self.seen.subscribe().wait_for(|record| done(record)).await.ok();
    }
}

#[derive(Debug)]
pub(crate) struct Table<R: Record>(RwLock<BTreeMap<String, Arc<Entry<R>>>>);

impl<R: Record> Default for Table<R> {
    fn default() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }
}

impl<R: Record> Table<R> {
    pub(crate) fn insert(&self, record: R) -> Arc<Entry<R>> {
        let id = record.id().to_owned();
        let entry = Arc::new(Entry::new(record));
        self.0.write().insert(id, entry.clone());
        entry
    }

    pub(crate) fn remove(&self, id: &str) {
        self.0.write().remove(id);
    }

    /// Whether `entry` is still here: one that was found before a wait may be gone after it.
    pub(crate) fn has(&self, entry: &Arc<Entry<R>>) -> bool {
        let map = self.0.read();
        map.get(entry.get().id()).is_some_and(|found| Arc::ptr_eq(found, entry))
    }

    /// By id, or by a beginning of it that fits only one.
    pub(crate) fn find(&self, id: &str) -> Result<Option<Arc<Entry<R>>>, AmbiguousId> {
        let map = self.0.read();
        if let Some(entry) = map.get(id) {
            return Ok(Some(entry.clone()));
        }
        if id.is_empty() {
            return Ok(None);
        }
        let mut fits = map.range(id.to_owned()..).take_while(|(key, _)| key.starts_with(id));
        match (fits.next(), fits.next()) {
            (Some(_), Some(_)) => Err(AmbiguousId(id.to_owned())),
            (first, _) => Ok(first.map(|(_, entry)| entry.clone())),
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry<R>>> {
        self.0.read().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Serialize, Debug)]
    struct Word(String);
    impl Record for Word {
        type Samples = ();
        fn id(&self) -> &str {
            &self.0
        }
        fn file(&self, layout: &Layout) -> PathBuf {
            layout.state.join(&self.0)
        }
        fn is_writable(&self) -> bool {
            self.0 != "sealed"
        }
    }

    #[test]
    fn a_prefix_finds_the_only_one_it_fits() {
        let table = Table::default();
        for word in ["abc", "abd", "b"] {
            table.insert(Word(word.into()));
        }
        let found = |id| table.find(id).map(|e| e.map(|e| e.get().0.clone()));
        assert_eq!(found("abc").unwrap().as_deref(), Some("abc"));
        assert_eq!(found("abd").unwrap().as_deref(), Some("abd"));
        assert!(found("ab").is_err());
        assert_eq!(found("b").unwrap().as_deref(), Some("b"));
        assert_eq!(found("c").unwrap(), None);
        assert_eq!(found("").unwrap(), None);
    }

    #[test]
    fn a_file_that_could_not_be_read_is_never_written() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { state: dir.path().to_owned(), root: dir.path().to_owned() };
        let entry = Entry::new(Word("sealed".into()));
        entry.update(&layout, |_| ()).unwrap();
        entry.try_update(&layout, |_| ()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_change_is_on_disk_when_it_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { state: dir.path().to_owned(), root: dir.path().to_owned() };
        let entry = Entry::new(Word("a".into()));
        entry.update(&layout, |w| w.0 = "z".into()).unwrap();
        assert_eq!(entry.get().0, "z");
        assert_eq!(std::fs::read_to_string(dir.path().join("z")).unwrap(), "\"z\"");
    }
}
