//! Threads for work that blocks: files, mounts, cgroups.
//!
//! Each set keeps some threads from its start on, so work continues while the kernel refuses new
//! ones: a container may use up the process ids of the node. Stopping and removing containers has a
//! separate set, [`STOP`], which waits for no other work.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::{Condvar, Mutex};

/// For all blocking work, except that of [`STOP`].
pub static ORDINARY: Threads = Threads::new("work", 2, 64);
/// For stopping, killing and removing pods and containers.
pub static STOP: Threads = Threads::new("stop", 4, 64);

/// How long a thread beyond the kept ones waits for more work, so that a burst leaves no idle
/// threads and stacks.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce() + Send>;

/// A set of threads with one queue.
#[derive(Debug)]
pub struct Threads {
    name: &'static str,
    kept: usize,
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// The kernel refused to create the last thread.
    refused: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { queue, threads, idle, refused } = self;
        let mut fields = f.debug_struct("State");
        fields.field("queue", &queue.len()).field("threads", threads).field("idle", idle);
        fields.field("refused", refused).finish()
    }
}

impl Threads {
    /// Creates a set of `kept` threads once started, and up to `most` while there is work for them.
    pub const fn new(name: &'static str, kept: usize, most: usize) -> Self {
        let state = State { queue: VecDeque::new(), threads: 0, idle: 0, refused: false };
        Self { name, kept, most, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Starts the kept threads. Without this the set works as long as the kernel allows new
    /// threads.
    pub fn start(&'static self) -> io::Result<()> {
        while self.state.lock().threads < self.kept {
            self.add_thread()?;
        }
        Ok(())
    }

    /// Runs `work` to its end on one of the threads, even if the future is dropped. Returns its
    /// panic as an error.
    pub async fn run<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Box<dyn Any + Send>> {
        match self.spawn(work).await {
            Ok(outcome) => outcome,
            // The queue is never dropped, and each job sends its result.
            Err(_) => std::future::pending().await,
        }
    }

    /// Does the same as [`Threads::run`], but starts the work immediately.
    pub fn spawn<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<thread::Result<T>> {
        let (sender, receiver) = oneshot::channel();
        // Work may use the runtime of its caller, as with `spawn_blocking`.
        let runtime = Handle::try_current().ok();
        let job = Box::new(move || {
            let _runtime = runtime.as_ref().map(Handle::enter);
            drop(sender.send(catch_unwind(AssertUnwindSafe(work))));
        });
        let mut state = self.state.lock();
        state.queue.push_back(job);
        // An idle thread that was notified counts as idle until it has taken its job.
        let is_short = state.idle < state.queue.len() && state.threads < self.most;
        drop(state);
        self.changed.notify_one();
        if is_short && let Err(error) = self.add_thread() {
            self.refused(&error);
        }
        receiver
    }

    fn add_thread(&'static self) -> io::Result<()> {
        self.state.lock().threads += 1;
        let started = thread::Builder::new().name(self.name.to_owned()).spawn(|| self.work());
        let mut state = self.state.lock();
        state.refused &= started.is_err();
        state.threads -= usize::from(started.is_err());
        started.map(drop)
    }

    /// Handles a failed thread creation: existing threads do the work. If there are none, the
    /// caller runs it.
    fn refused(&self, error: &io::Error) {
        if !std::mem::replace(&mut self.state.lock().refused, true) {
            tracing::warn!(%error, set = self.name, "cannot create a worker thread of the daemon; work waits for the existing threads");
        }
        loop {
            let mut state = self.state.lock();
            if state.threads > 0 {
                return;
            }
            let Some(job) = state.queue.pop_front() else { return };
            drop(state);
            job();
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            if state.threads <= self.kept {
                state = self.changed.wait(state);
                state.idle -= 1;
                continue;
            }
            let (held, waited) = self.changed.wait_timeout(state, KEEP_ALIVE);
            state = held;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() && state.threads > self.kept {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn work_is_run_and_its_panic_is_returned() {
        static SET: Threads = Threads::new("test", 1, 4);
        SET.start().unwrap();
        assert_eq!(SET.run(|| 7).await.unwrap(), 7);
        let panicked = SET.run(|| panic!("in a job")).await.unwrap_err();
        assert_eq!(panicked.downcast_ref(), Some(&"in a job"));
        assert_eq!(SET.run(|| 8).await.unwrap(), 8, "the thread continues");
    }

    #[tokio::test]
    async fn work_may_use_the_runtime_of_its_caller() {
        static SET: Threads = Threads::new("test", 1, 4);
        let work = || Handle::current().block_on(async { tokio::spawn(async { 5 }).await });
        assert_eq!(SET.run(work).await.unwrap().unwrap(), 5);
    }

    #[tokio::test]
    async fn the_thread_limit_is_kept_and_all_work_is_done() {
        static SET: Threads = Threads::new("test", 1, 3);
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let jobs: Vec<_> = (0..50)
            .map(|_| {
                let (now, most) = (now.clone(), most.clone());
                SET.spawn(move || {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(2));
                    now.fetch_sub(1, Ordering::SeqCst);
                })
            })
            .collect();
        for job in jobs {
            job.await.unwrap().unwrap();
        }
        assert!((2..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    }

    #[tokio::test]
    async fn threads_beyond_the_kept_ones_exit() {
        static SET: Threads = Threads::new("test", 1, 8);
        SET.start().unwrap();
        let jobs: Vec<_> = (0..8).map(|_| SET.spawn(|| thread::sleep(Duration::from_millis(50)))).collect();
        for job in jobs {
            job.await.unwrap().unwrap();
        }
        assert!(SET.state.lock().threads > 1);
        let end = std::time::Instant::now() + KEEP_ALIVE * 5;
        while SET.state.lock().threads > 1 {
            assert!(std::time::Instant::now() < end, "{SET:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(SET.run(|| 1).await.unwrap(), 1);
    }
}
