//! A container that changes a shared volume continuously.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::support::harness::{seconds, wait_for};

/// A thread that does one thing over and over, until this is dropped.
#[derive(Debug)]
pub(crate) struct Racer {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Racer {
    /// Begins, and returns when it has got going.
    pub(crate) fn start(mut change: impl FnMut() + Send + 'static) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), rounds.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                change();
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let racer = Self { stop, rounds, thread: Some(thread) };
        wait_for("the race to begin", seconds(10), || (racer.rounds() > 100).then_some(()));
        racer
    }

    /// Exchanges two files in one step: neither name is ever missing.
    pub(super) fn exchange(one: &Path, other: &Path) -> Self {
        let (one, other) = (one.to_owned(), other.to_owned());
        Self::start(move || renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap())
    }

    pub(super) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()), "the racer fell over");
    }
}
