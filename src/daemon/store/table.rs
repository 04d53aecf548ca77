//! The table of pods or containers by ID.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use cgroup::{Cgroup, FileCache};
use model::CgroupPath;
use safe_fs::FileError;
use serde::Serialize;
use sync::RwLock;
use tokio::sync::{Mutex, MutexGuard, watch};

use super::cpu_rate::CpuSamples;
use super::event_cursor::EventCursor;
use super::layout::Layout;
use super::oom_kills::OomKillCursor;
use super::record::{ContainerRecord, PodRecord};
use super::samples::{DiskSamples, LimitsCache};
use super::stop_waiters::StopWaiters;

/// An ID prefix with several matches.
#[derive(Debug, thiserror::Error)]
#[error("ID {0:?} in the request is ambiguous: it is the start of several pod or container IDs")]
pub(crate) struct AmbiguousId(String);

/// The file of a pod's record.
pub(crate) const POD_FILE: &str = "pod.json";
/// The file of a container's record.
pub(crate) const CONTAINER_FILE: &str = "container.json";

/// A record that is stored in a file.
pub(crate) trait Record: Serialize + Clone {
    /// The part of an entry that is only in memory.
    type Samples: Default + std::fmt::Debug + Send + Sync;
    fn id(&self) -> &str;
    fn file(&self, layout: &Layout) -> PathBuf;
    /// Returns whether the file may be written: not if this daemon could not read it.
    fn is_writable(&self) -> bool;
}

/// A record of a pod or container with a cgroup, whose path never changes.
pub(crate) trait CgroupRecord: Record {
    fn cgroup_path(&self) -> &CgroupPath;
    /// The files to keep open between two readings.
    fn file_cache(samples: &Self::Samples) -> Option<Arc<FileCache>>;
}

/// Cached values of a pod.
#[derive(Debug, Default)]
pub(crate) struct PodSamples {
    pub(crate) cpu: CpuSamples,
    pub(crate) reported: EventCursor,
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

impl CgroupRecord for PodRecord {
    fn cgroup_path(&self) -> &CgroupPath {
        &self.cgroup.path
    }
    fn file_cache(_samples: &PodSamples) -> Option<Arc<FileCache>> {
        None
    }
}

/// Cached values of a container.
#[derive(Debug, Default)]
pub(crate) struct ContainerSamples {
    pub(crate) cpu: CpuSamples,
    pub(crate) disk: DiskSamples,
    pub(crate) limits: LimitsCache,
    pub(crate) files: Arc<FileCache>,
    pub(crate) reported: EventCursor,
    pub(crate) oom_kills: OomKillCursor,
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

impl CgroupRecord for ContainerRecord {
    fn cgroup_path(&self) -> &CgroupPath {
        &self.cgroup
    }
    fn file_cache(samples: &ContainerSamples) -> Option<Arc<FileCache>> {
        Some(Arc::clone(&samples.files))
    }
}

/// A record with a lock for changes and a cell for reads: a status never waits for a slow stop.
#[derive(Debug)]
pub(crate) struct Entry<R: Record> {
    work: Mutex<()>,
    resizing: Mutex<()>,
    /// Held while a changed record is written.
    writing: sync::Mutex<()>,
    seen: watch::Sender<Arc<R>>,
    gauges: R::Samples,
    /// Created at the first use.
    cgroup: OnceLock<Cgroup>,
}

impl<R: CgroupRecord> Entry<R> {
    /// Returns the cgroup, which `open` creates from its path at the first use.
    pub(crate) fn cgroup(&self, open: impl FnOnce(&CgroupPath) -> Cgroup) -> &Cgroup {
        self.cgroup.get_or_init(|| {
            let cgroup = open(self.get().cgroup_path());
            match R::file_cache(&self.gauges) {
                Some(files) => cgroup.with_file_cache(files),
                None => cgroup,
            }
        })
    }
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
            cgroup: OnceLock::new(),
        }
    }

    /// Returns the current record.
    pub(crate) fn get(&self) -> Arc<R> {
        self.seen.borrow().clone()
    }

    /// Returns the cached values.
    pub(crate) fn samples(&self) -> &R::Samples {
        &self.gauges
    }

    /// Locks the entry for an operation of several steps.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, ()> {
        self.work.lock().await
    }

    /// Locks the entry for a resize: separate from the other lock, so that a resize does not wait
    /// for a slow stop.
    pub(crate) async fn lock_resources(&self) -> MutexGuard<'_, ()> {
        self.resizing.lock().await
    }

    /// Returns whether `seen` is the current record and no resize is in progress.
    pub(crate) fn is_current(&self, seen: &R) -> bool {
        self.resizing.try_lock().is_ok() && std::ptr::eq(&*self.get(), seen)
    }

    /// Changes and writes the record in one step; if it cannot be written, it is not changed.
    pub(crate) fn try_update(&self, layout: &Layout, change: impl FnOnce(&mut R)) -> Result<(), FileError> {
        self.change(layout, change, |written| written.is_ok())
    }

    /// Changes and writes the record in one step; it is changed also if it cannot be written.
    pub(crate) fn update(&self, layout: &Layout, change: impl FnOnce(&mut R)) -> Result<(), FileError> {
        self.change(layout, change, |_| true)
    }

    /// Reads do not wait for the disk, only other changes do.
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

    /// Waits until `done` is true for the record.
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

    /// Returns whether `entry` still exists: it may have been removed during a wait.
    pub(crate) fn has(&self, entry: &Arc<Entry<R>>) -> bool {
        let map = self.0.read();
        map.get(entry.get().id()).is_some_and(|found| Arc::ptr_eq(found, entry))
    }

    /// Returns the entry with this ID, or the only one with this ID prefix.
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
    fn a_prefix_finds_its_only_match() {
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
