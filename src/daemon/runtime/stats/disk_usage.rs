//! Measures writable layers in the background, with little load.
//!
//! One thread measures, while there is work. Layers without a value come first. Others are measured
//! again when a client reads them and the value is old. A layer that takes longer than a [`SLICE`]
//! goes to a second queue, of which one at a time is walked, in slices and in turns with the small
//! ones: a container with a million files delays no other.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, Instant, SystemTime};

use model::stats::DiskUsage;
use sync::{Condvar, Mutex};
use tracing::Span;

use super::disk_walk::{Found, Walk};
use crate::log_names::LogNames;
use crate::store::samples::{DiskSample, Refresh};
use crate::store::{ContainerRecord, Entry, PodRecord};

/// The time for which one layer is walked before another has its turn.
const SLICE: Duration = Duration::from_millis(20);
/// After a slice the thread sleeps this many times as long, unless a first value is needed.
const REST: u32 = 3;
/// The parts of a layer's directory that the container fills: its changes, and its volumes.
const PARTS: [&str; 2] = ["upper", "volumes"];

type Container = Entry<ContainerRecord>;

/// Measures writable layers.
#[derive(Debug, Default)]
pub(crate) struct DiskUsageMeter {
    queue: Mutex<Queue>,
    /// Notified after a measurement, and for new work.
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Layers without a value.
    first: VecDeque<Job>,
    again: VecDeque<Job>,
    /// Only the first of them has a walk in progress.
    large: VecDeque<Job>,
    /// True if a large layer has the next turn.
    larges_turn: bool,
    /// True while the thread runs.
    busy: bool,
}

#[derive(Debug)]
struct Job {
    /// Weak: a removed container needs no value.
    container: Weak<Container>,
    pod: Option<Arc<PodRecord>>,
    dir: PathBuf,
    walk: Option<Walk>,
    spent: Duration,
    large: bool,
}

impl DiskUsageMeter {
    /// Queues the layers of `containers` that need a measurement, and waits up to `within` for
    /// those without a value. `dir` returns the directory of a layer, `pod` the pod for log lines.
    pub(super) fn request(
        self: &Arc<Self>,
        containers: &[Arc<Container>],
        within: Duration,
        dir: impl Fn(&ContainerRecord) -> PathBuf,
        pod: impl Fn(&ContainerRecord) -> Option<Arc<PodRecord>>,
    ) {
        let now = Instant::now();
        let mut new = Vec::new();
        let mut queue = self.lock();
        for container in containers {
            let job = || Job::new(container, dir(&container.get()), pod(&container.get()));
            match container.samples().disk.take(now) {
                Refresh::No => {}
                Refresh::First => {
                    queue.first.push_back(job());
                    new.push(container);
                }
                Refresh::Again { large: false } => queue.again.push_back(job()),
                Refresh::Again { large: true } => queue.large.push_back(Job { large: true, ..job() }),
            }
        }
        self.work_on(&mut queue);
        let unknown = |container: &&Arc<Container>| container.samples().disk.known().is_none();
        while queue.busy && new.iter().any(unknown) {
            let left = within.saturating_sub(now.elapsed());
            if left.is_zero() {
                return;
            }
            queue = self.moved.wait_timeout(queue, left).0;
        }
    }

    /// Starts the thread if there is work and none runs.
    fn work_on(self: &Arc<Self>, queue: &mut Queue) {
        self.moved.notify_all();
        if queue.busy || queue.is_empty() {
            return;
        }
        let meter = Arc::downgrade(self);
        match std::thread::Builder::new().name("layer-meter".to_owned()).spawn(move || work(&meter)) {
            Ok(_) => queue.busy = true,
            Err(error) => {
                tracing::warn!(%error, "cannot start the thread that measures writable layers; stats lack their disk usage until a later request");
                let Queue { first, again, large, .. } = std::mem::take(queue);
                for job in first.into_iter().chain(again).chain(large) {
                    job.end(None);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Returns the next layer; `None` ends the thread, and new work starts another.
    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        let job = queue.next();
        queue.busy = job.is_some();
        job
    }

    /// Marks unfinished layers as not measured, and notifies all waiting requests.
    fn done(&self, unfinished: Option<Job>) {
        let mut queue = self.lock();
        match unfinished {
            Some(under_way) if under_way.walk.is_some() => queue.large.push_front(under_way),
            Some(large) => queue.large.push_back(large),
            None => {}
        }
        self.moved.notify_all();
    }

    /// Sleeps for `pause`, or until a layer without a value is queued.
    fn rest(&self, pause: Duration) {
        let end = Instant::now() + pause;
        let mut queue = self.lock();
        while queue.first.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = self.moved.wait_timeout(queue, left).0;
        }
    }
}

/// The thread: runs until there is no work, or the daemon exits.
fn work(meter: &Weak<DiskUsageMeter>) {
    let _alarm = PanicGuard(meter);
    while let Some(meter) = meter.upgrade() {
        let Some(job) = meter.next() else { return };
        let begin = Instant::now();
        let unfinished = job.go_on(begin);
        let spent = begin.elapsed();
        meter.done(unfinished);
        meter.rest(spent * REST);
    }
}

/// After a panic the thread must not count as running.
struct PanicGuard<'a>(&'a Weak<DiskUsageMeter>);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if let Some(meter) = self.0.upgrade()
            && std::thread::panicking()
        {
            meter.lock().busy = false;
        }
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.first.is_empty() && self.again.is_empty() && self.large.is_empty()
    }

    fn next(&mut self) -> Option<Job> {
        if let Some(first) = self.first.pop_front() {
            return Some(first);
        }
        self.larges_turn = !self.larges_turn;
        match self.larges_turn {
            true => self.large.pop_front().or_else(|| self.again.pop_front()),
            false => self.again.pop_front().or_else(|| self.large.pop_front()),
        }
    }
}

impl Job {
    fn new(container: &Arc<Container>, dir: PathBuf, pod: Option<Arc<PodRecord>>) -> Self {
        Self { container: Arc::downgrade(container), pod, dir, walk: None, spent: Duration::ZERO, large: false }
    }

    fn names(&self, container: &Container) -> Span {
        LogNames::of_container(&container.get(), self.pod.as_deref()).span()
    }

    /// Measures a layer for a slice; returns it if it is not finished.
    fn go_on(mut self, begin: Instant) -> Option<Self> {
        let container = self.container.upgrade()?;
        match self.walk(begin + SLICE) {
            Ok(Some(found)) => {
                self.spent += begin.elapsed();
                if self.end(Some(found)) {
                    let _names = self.names(&container).entered();
                    tracing::warn!(
                        "a writable layer is too deep or changed while it was measured; the result may be too low"
                    );
                }
                None
            }
            Ok(None) if self.large => {
                self.spent += begin.elapsed();
                Some(self)
            }
            Ok(None) => {
                container.samples().disk.is_large();
                // It starts again at its next turn: a walk in progress uses descriptors and memory.
                Some(Self { large: true, walk: None, ..self })
            }
            Err(error) => {
                // A layer that is being removed may vanish during the walk.
                let there = self.dir.exists();
                if self.end(None) && there {
                    let _names = self.names(&container).entered();
                    tracing::warn!(%error, "cannot measure the container's writable layer; stats lack its disk usage");
                }
                None
            }
        }
    }

    fn walk(&mut self, until: Instant) -> io::Result<Option<Found>> {
        let walk = match &mut self.walk {
            Some(walk) => walk,
            none => none.insert(Walk::begin(&self.dir, &PARTS)?),
        };
        walk.advance(until)
    }

    /// Returns true for a failure that was not logged yet.
    fn end(&self, found: Option<Found>) -> bool {
        let Some(container) = self.container.upgrade() else { return false };
        let look = found.map(|Found { bytes, inodes, whole }| DiskSample {
            usage: DiskUsage { at: SystemTime::now(), bytes, inodes },
            whole,
            spent: self.spent,
        });
        container.samples().disk.put(Instant::now(), self.large, look)
    }
}

#[cfg(test)]
#[path = "disk_usage_tests.rs"]
mod tests;
