//! How far long work is, and whether anybody still wants it.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use sync::Mutex;

/// How far an import or export is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done.
    pub bytes: u64,
    /// Bytes to be done, as far as is known by now; 0 where nothing is known.
    pub total: u64,
    /// Layers done.
    pub layers: u64,
}

/// Told of every step, by any thread; breaks where the work is to be given up.
pub type ProgressFn<'a> = &'a (dyn Fn(Progress) -> ControlFlow<()> + Sync);

/// The work was given up; carried inside an `io::Error`.
#[derive(Debug, thiserror::Error)]
#[error("given up")]
struct Cancelled;

/// Adds up what several threads have done.
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

    /// Counts bytes; an error once the work is to be given up.
    pub(crate) fn bytes(&self, count: u64) -> io::Result<()> {
        self.tell(|seen| seen.bytes = seen.bytes.saturating_add(count))
    }

    pub(crate) fn layer(&self) -> io::Result<()> {
        self.tell(|seen| seen.layers += 1)
    }

    fn tell(&self, change: impl FnOnce(&mut Progress)) -> io::Result<()> {
        let mut seen = self.seen.lock();
        change(&mut seen);
        if (self.watch)(*seen).is_break() {
            self.stop();
        }
        if self.is_stopped() { Err(io::Error::other(Cancelled)) } else { Ok(()) }
    }

    /// Makes all who count here give up.
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

/// For work that nobody watches.
pub fn ignore_progress(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
