//! Sends the calls of a session, one at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::session::{Job, Shared};
use super::sync::{SyncError, synchronize};
use crate::api::ContainerUpdate;
use crate::event::is_state_change;
use crate::host::{Host, Observation};
use crate::wire::{Call, CallError, CloseReason, Code};

/// The worker of a session.
#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    jobs: mpsc::UnboundedReceiver<Job>,
}

/// The end of a worker.
#[derive(Debug)]
pub(crate) enum End {
    /// The connection was closed.
    Closed(CloseReason),
    /// The session was replaced, and all its calls are answered.
    Replaced,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, jobs: mpsc::UnboundedReceiver<Job>) -> Self {
        Self { shared, jobs }
    }

    /// Synchronizes the plugin after `before`, and returns its updates of containers. A failure
    /// closes the connection.
    pub(crate) async fn synchronize(
        &self,
        before: impl Future<Output = ()>,
        host: &dyn Host,
    ) -> Result<Vec<ContainerUpdate>, SyncError> {
        let plugin = &self.shared.plugin;
        let outcome = tokio::select! {
            biased;
            reason = plugin.connection.closed() => Err(SyncError::Call(reason.into())),
            outcome = async {
                before.await;
                let begun = Instant::now();
                let synchronized = synchronize(&plugin.connection, host.objects(), self.shared.times.sync).await?;
                Ok((synchronized, begun.elapsed()))
            } => outcome,
        };
        match outcome {
            Ok((synchronized, time)) => {
                self.shared.is_active.send_replace(true);
                host.observe(&plugin.identity, Observation::Active { objects: synchronized.objects, time });
                Ok(synchronized.updates)
            }
            Err(error) => {
                plugin.connection.close(CloseReason::ByRuntime(format!("synchronization failed: {error}")));
                Err(error)
            }
        }
    }

    /// Sends the calls in the queue until the connection is closed or the session replaced.
    pub(crate) async fn run(mut self, host: &dyn Host) -> End {
        let plugin = self.shared.plugin.clone();
        let end = loop {
            let job = tokio::select! {
                biased;
                reason = plugin.connection.closed() => break End::Closed(reason),
                job = self.jobs.recv() => job,
            };
            let Some(job) = job else { break End::Replaced };
            self.shared.taken(&job);
            if job.start() {
                self.call(job, host).await;
                if self.shared.has_missed.load(Ordering::Relaxed) {
                    self.shared.rejoin.notify_one();
                }
            }
        };
        self.shared.is_done.send_replace(true);
        end
    }

    /// Makes one call. Its caller gets a timeout when the time is over; the next call is sent only
    /// after the late answer, so that the plugin never has two.
    async fn call(&self, job: Job, host: &dyn Host) {
        let plugin = &self.shared.plugin;
        let time = self.shared.times.request;
        let method = job.ask.method();
        let container = job.ask.container().map(str::to_owned);
        let begun = Instant::now();
        let Job { ask, traceparent, reply, .. } = job;
        let observe = |outcome| {
            let time = begun.elapsed();
            host.observe(&plugin.identity, Observation::Called { method, outcome, time });
        };
        let answer = self.exchange(&ask, traceparent.as_deref());
        tokio::pin!(answer);
        if let Ok(answer) = tokio::time::timeout(time, &mut answer).await {
            plugin.answered_in_time();
            observe(outcome(&answer));
            // The caller may have been cancelled.
            drop(reply.send(answer));
            return;
        }
        observe("timeout");
        self.shared.has_missed.store(true, Ordering::Relaxed);
        drop(reply.send(Err(CallError::TimedOut(time))));
        plugin.timed_out();
        loop {
            match tokio::time::timeout(time.max(Duration::from_millis(1)), &mut answer).await {
                Ok(Err(CallError::Closed(_))) => return,
                Ok(_) => break,
                Err(_) => plugin.timed_out(),
            }
        }
        let time = begun.elapsed();
        let late = Observation::AnsweredLate { method, container: container.as_deref(), time };
        host.observe(&plugin.identity, late);
        tracing::info!(plugin = %plugin.identity, method, ?time, "the plugin answered late; its answer is dropped");
    }

    /// Sends a call and waits for its answer, without a limit.
    async fn exchange(&self, ask: &super::Ask, traceparent: Option<&str>) -> Result<Vec<u8>, CallError> {
        let plugin = &self.shared.plugin;
        let event = ask.event();
        let may_fall_back = is_state_change(event);
        let timeout = self.shared.times.request;
        if !(may_fall_back && plugin.takes_state_change()) {
            let call = Call { method: ask.method(), payload: ask.encode(), timeout, traceparent };
            let answer = plugin.connection.send(call).await?.wait().await;
            match answer {
                Err(CallError::Refused { code, .. }) if code == Code::Unimplemented.number() => {}
                answer => return answer,
            }
            if !may_fall_back {
                // An empty answer changes nothing and rejects nothing.
                return if plugin.set_lacks(event) { Ok(Vec::new()) } else { answer };
            }
            plugin.set_takes_state_change();
        }
        let call = Call { method: "StateChange", payload: ask.encode_state_change(), timeout, traceparent };
        plugin.connection.send(call).await?.wait().await
    }
}

fn outcome(answer: &Result<Vec<u8>, CallError>) -> &'static str {
    match answer {
        Ok(_) => "ok",
        Err(CallError::Refused { .. }) => "refused",
        Err(CallError::TimedOut(_) | CallError::Queued(_) | CallError::QueueFull(_)) => "timeout",
        Err(CallError::Closed(_)) => "closed",
        Err(CallError::TooLarge(_) | CallError::TooManyFields | CallError::Malformed(_)) => "failed",
    }
}
