//! Progress and cancellation of imports and exports.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use sync::Mutex;

/// The progress of an import or export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done.
    pub bytes: u64,
    /// Expected total in bytes, as far as known; 0 if unknown.
    pub total: u64,
    /// Layers done.
    pub layers: u64,
}

/// Called after every step, by any thread; `Break` cancels the work.
pub type ProgressFn<'a> = &'a (dyn Fn(Progress) -> ControlFlow<()> + Sync);

/// The work was cancelled; carried inside an `io::Error`.
#[derive(Debug, thiserror::Error)]
#[error("the image import or export was cancelled")]
struct Cancelled;

/// Sums up the work of several threads.
pub(crate) struct Counter<'a> {
    seen: Mutex<Progress>,
    stopped: AtomicBool,
    watch: ProgressFn<'a>,
}

impl<'a> Counter<'a> {
    pub(crate) fn new(total: u64, watch: ProgressFn<'a>) -> Self {
        let seen = Mutex::new(Progress { total, ..Progress::default() });
        Self { seen, stopped: AtomicBool::new(false), watch }
    }

    /// Counts bytes; returns an error once the work is cancelled.
    pub(crate) fn bytes(&self, count: u64) -> io::Result<()> {
        self.update(|seen| seen.bytes = seen.bytes.saturating_add(count))
    }

    pub(crate) fn layer(&self) -> io::Result<()> {
        self.update(|seen| seen.layers += 1)
    }

    fn update(&self, change: impl FnOnce(&mut Progress)) -> io::Result<()> {
        let mut seen = self.seen.lock();
        change(&mut seen);
        if (self.watch)(*seen).is_break() {
            self.stop();
        }
        if self.is_stopped() { Err(io::Error::other(Cancelled)) } else { Ok(()) }
    }

    /// Cancels the work of all threads that count here.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Counts what is read from `from`.
    pub(crate) fn reading<R>(&'a self, from: R) -> Counted<'a, R> {
        Counted { from, seen: 0, counter: self }
    }
}

/// See [`Counter::reading`].
pub(crate) struct Counted<'a, R> {
    from: R,
    seen: u64,
    counter: &'a Counter<'a>,
}

impl<R> Counted<'_, R> {
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        let bytes = u64::try_from(count).unwrap_or(u64::MAX);
        self.seen = self.seen.saturating_add(bytes);
        self.counter.bytes(bytes)?;
        Ok(count)
    }
}

/// A [`ProgressFn`] that ignores the progress.
pub fn ignore_progress(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
