//! Counters and progress of pulls, for metrics, status and log.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use sync::Mutex;

use crate::reference::Reference;
use crate::registry::pull_cause::PullCause;

/// Interval of the progress messages of a pull in the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Totals of all pulls since the store was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullTotals {
    /// Pulls that succeeded.
    pub succeeded: u64,
    /// Pulls that failed, by cause. Every cause is listed.
    pub failed: BTreeMap<&'static str, u64>,
    /// Bytes of blobs received over the network, including those of failed pulls.
    pub bytes: u64,
    /// Layers unpacked from the network.
    pub layers: u64,
    /// Requests that were retried.
    pub retries: u64,
    /// Pulls in progress.
    pub pulling: Vec<ActivePull>,
}

/// A pull in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivePull {
    /// The image's name in full.
    pub image: String,
    /// Time since it started.
    pub since: Duration,
    /// Bytes of layers received so far.
    pub bytes: u64,
    /// Total bytes of the layers to download; 0 if not yet known.
    pub total: u64,
    /// Layers that are ready.
    pub layers: usize,
    /// Layers of the image that are not in the store.
    pub layers_total: usize,
}

/// Counters of all pulls.
#[derive(Debug, Default)]
pub(crate) struct PullCounters {
    succeeded: AtomicU64,
    failed: [AtomicU64; PullCause::ALL.len()],
    bytes: AtomicU64,
    layers: AtomicU64,
    retries: AtomicU64,
    last: AtomicU64,
    pulling: Mutex<BTreeMap<u64, Arc<Counts>>>,
}

/// Counters of one pull.
#[derive(Debug)]
struct Counts {
    image: Mutex<String>,
    since: Instant,
    bytes: AtomicU64,
    total: AtomicU64,
    layers: AtomicUsize,
    layers_total: AtomicUsize,
}

impl PullCounters {
    /// Starts a pull; it counts as abandoned unless [`Progress::succeed`] or [`Progress::fail`] is called.
    pub(crate) fn begin(self: &Arc<Self>) -> Progress {
        let counts = Arc::new(Counts {
            image: Mutex::default(),
            since: Instant::now(),
            bytes: AtomicU64::new(0),
            total: AtomicU64::new(0),
            layers: AtomicUsize::new(0),
            layers_total: AtomicUsize::new(0),
        });
        let number = self.last.fetch_add(1, Relaxed);
        self.pulling().insert(number, counts.clone());
        Progress { counters: self.clone(), number, counts, end: Mutex::new(Err(PullCause::Abandoned)) }
    }

    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    pub(crate) fn traffic(&self) -> PullTotals {
        PullTotals {
            succeeded: self.succeeded.load(Relaxed),
            failed: PullCause::ALL.map(|cause| (cause.as_str(), self.failed[cause as usize].load(Relaxed))).into(),
            bytes: self.bytes.load(Relaxed),
            layers: self.layers.load(Relaxed),
            retries: self.retries.load(Relaxed),
            pulling: self.pulling().values().map(|counts| counts.now()).collect(),
        }
    }

    /// Returns the bytes of layers received by active pulls of an image.
    pub(crate) fn bytes_of(&self, image: &str) -> u64 {
        let pulling = self.pulling();
        let same = pulling.values().filter(|counts| *counts.image.lock() == image);
        same.map(|counts| counts.bytes.load(Relaxed)).sum()
    }

    fn pulling(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Counts>>> {
        self.pulling.lock()
    }
}

impl Counts {
    fn now(&self) -> ActivePull {
        ActivePull {
            image: self.image.lock().clone(),
            since: self.since.elapsed(),
            bytes: self.bytes.load(Relaxed),
            total: self.total.load(Relaxed),
            layers: self.layers.load(Relaxed),
            layers_total: self.layers_total.load(Relaxed),
        }
    }
}

/// One pull, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    counters: Arc<PullCounters>,
    number: u64,
    counts: Arc<Counts>,
    end: Mutex<Result<(), PullCause>>,
}

impl Progress {
    /// Sets the name of the image.
    pub(crate) fn name(&self, image: &Reference) {
        *self.counts.image.lock() = image.to_string();
    }

    /// Sets the layers to download, by size.
    pub(crate) fn expect(&self, sizes: impl ExactSizeIterator<Item = u64>) {
        self.counts.layers_total.store(sizes.len(), Relaxed);
        self.counts.total.store(sizes.fold(0, u64::saturating_add), Relaxed);
    }

    /// Adds received bytes of a blob.
    pub(crate) fn came(&self, bytes: u64) {
        self.counts.bytes.fetch_add(bytes, Relaxed);
        self.counters.bytes.fetch_add(bytes, Relaxed);
    }

    /// Subtracts bytes of a layer that must be downloaded again.
    pub(crate) fn lost(&self, bytes: u64) {
        self.counts.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Counts an unpacked layer.
    pub(crate) fn unpacked(&self) {
        self.counts.layers.fetch_add(1, Relaxed);
        self.counters.layers.fetch_add(1, Relaxed);
    }

    /// Removes a layer that another pull has provided.
    pub(crate) fn skipped(&self, size: u64) {
        self.counts.layers.fetch_add(1, Relaxed);
        let less = |total: u64| Some(total.saturating_sub(size));
        let _before = self.counts.total.fetch_update(Relaxed, Relaxed, less);
    }

    /// Marks the pull as successful.
    pub(crate) fn succeed(&self) {
        *self.end.lock() = Ok(());
    }

    /// Marks the pull as failed.
    pub(crate) fn fail(&self, cause: PullCause) {
        *self.end.lock() = Err(cause);
    }

    /// Waits for `work` and logs its progress periodically.
    pub(crate) async fn log_progress_while<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            if let Ok(done) = tokio::time::timeout(LOG_INTERVAL, &mut work).await {
                return done;
            }
            let ActivePull { image, since, bytes, total, layers, layers_total } = self.counts.now();
            tracing::info!(image, seconds = since.as_secs(), bytes, total, layers, layers_total, "pulling an image");
        }
    }

    /// Logs the end of a pull that had something to download.
    pub(crate) fn log_end(&self) {
        let ActivePull { image, since, bytes, total: _, layers, layers_total: _ } = self.counts.now();
        tracing::info!(image, seconds = since.as_secs_f32(), bytes, layers, "pulled an image");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let outcome = match *self.end.lock() {
            Ok(()) => &self.counters.succeeded,
            Err(cause) => &self.counters.failed[cause as usize],
        };
        outcome.fetch_add(1, Relaxed);
        self.counters.pulling().remove(&self.number);
    }
}

#[cfg(test)]
#[path = "tests/progress.rs"]
mod tests;
