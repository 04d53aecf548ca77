//! The time of a plugin from one synchronization to the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::{Ask, Registered, Worker};
use crate::api::Event;
use crate::wire::CallError;

/// Calls that wait in the queue of one plugin, and their bytes.
const QUEUE_MAX: usize = 1024;
const QUEUE_BYTES: usize = 32 << 20;

/// The times that hold for a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) request: Duration,
    pub(crate) sync: Duration,
}

/// A session. The worker ends when all handles are dropped and the queue is empty.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    queue: mpsc::UnboundedSender<Job>,
}

/// The part of a session that its worker has too.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plugin: Arc<Registered>,
    pub(crate) times: Times,
    /// Synchronize is done.
    pub(crate) is_active: watch::Sender<bool>,
    /// The worker has ended.
    pub(crate) is_done: watch::Sender<bool>,
    /// An event did not reach the plugin in time, so it must be synchronized again.
    pub(crate) has_missed: AtomicBool,
    /// Notified when a plugin that has missed an event answers again.
    pub(crate) rejoin: Notify,
    waiting: AtomicUsize,
    bytes: AtomicUsize,
}

/// A call in the queue.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ask: Ask,
    pub(crate) traceparent: Option<Arc<str>>,
    pub(crate) reply: oneshot::Sender<Result<Vec<u8>, CallError>>,
    state: Arc<AtomicU8>,
    bytes: usize,
}

const QUEUED: u8 = 0;
const STARTED: u8 = 1;
const ABANDONED: u8 = 2;

impl Job {
    /// Returns whether the call is to be sent: its caller still waits for it.
    pub(crate) fn start(&self) -> bool {
        self.state.compare_exchange(QUEUED, STARTED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The answer to a call in the queue.
#[derive(Debug)]
pub(crate) struct Waiting {
    reply: Result<oneshot::Receiver<Result<Vec<u8>, CallError>>, CallError>,
    state: Arc<AtomicU8>,
    shared: Arc<Shared>,
}

impl Session {
    /// Creates a session, and the worker that must be run for it.
    pub(crate) fn new(plugin: Arc<Registered>, times: Times) -> (Self, Worker) {
        let (queue, jobs) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            plugin,
            times,
            is_active: watch::Sender::new(false),
            is_done: watch::Sender::new(false),
            has_missed: AtomicBool::new(false),
            rejoin: Notify::new(),
            waiting: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        });
        (Self { shared: shared.clone(), queue }, Worker::new(shared, jobs))
    }

    pub(crate) fn plugin(&self) -> &Registered {
        &self.shared.plugin
    }

    pub(crate) fn has(&self, event: Event) -> bool {
        self.plugin().has(event)
    }

    /// Puts a call into the queue, immediately: calls are sent in this order.
    pub(crate) fn enqueue(&self, ask: Ask, traceparent: Option<Arc<str>>) -> Waiting {
        let state = Arc::new(AtomicU8::new(QUEUED));
        let (reply, answer) = oneshot::channel();
        let reply = self.push(Job { bytes: ask.size(), ask, traceparent, reply, state: state.clone() });
        Waiting { reply: reply.map(|()| answer), state, shared: self.shared.clone() }
    }

    fn push(&self, job: Job) -> Result<(), CallError> {
        let shared = &self.shared;
        let waiting = shared.waiting.fetch_add(1, Ordering::Relaxed);
        let bytes = shared.bytes.fetch_add(job.bytes, Ordering::Relaxed);
        if waiting >= QUEUE_MAX || bytes.saturating_add(job.bytes) > QUEUE_BYTES {
            shared.taken(&job);
            shared.has_missed.store(true, Ordering::Relaxed);
            return Err(CallError::QueueFull(waiting));
        }
        // The worker drops its end when the connection is closed; so is the reply, then.
        drop(self.queue.send(job));
        Ok(())
    }
}

impl Shared {
    /// Counts a job that left the queue.
    pub(crate) fn taken(&self, job: &Job) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(job.bytes, Ordering::Relaxed);
    }
}

impl Waiting {
    /// Waits for the answer: in the queue as long as one call may take, or as long as the plugin may
    /// synchronize if it does; then until the call is answered or times out.
    pub(crate) async fn answer(self) -> Result<Vec<u8>, CallError> {
        let Self { reply, state, shared } = self;
        let mut reply = reply?;
        let times = shared.times;
        let limit = if *shared.is_active.borrow() { times.request } else { times.sync + times.request };
        let answer = match tokio::time::timeout(limit, &mut reply).await {
            Ok(answer) => answer,
            Err(_) => {
                let queued = state.compare_exchange(QUEUED, ABANDONED, Ordering::AcqRel, Ordering::Acquire);
                if queued.is_ok() {
                    shared.has_missed.store(true, Ordering::Relaxed);
                    return Err(CallError::Queued(limit));
                }
                // The worker limits the time of a started call.
                reply.await
            }
        };
        match answer {
            Ok(answer) => answer,
            // The worker ended.
            Err(_) => Err(shared.plugin.connection.closed().await.into()),
        }
    }
}
