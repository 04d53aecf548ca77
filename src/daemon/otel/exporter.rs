//! Sends spans to the trace collector, in the background.

use std::time::Duration;

use config::TracingConfig;
use cri_api::otlp::trace_service_client::TraceServiceClient;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::{Span, Spans};

/// Maximum spans of a batch.
const BATCH: usize = 512;
/// The time that the first span of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// Attempts per batch.
const ATTEMPTS: u32 = 5;
/// The pause before the second attempt; it doubles each time.
const PAUSE: Duration = Duration::from_secs(1);
/// The maximum time for the last batches when the daemon exits.
const LAST: Duration = Duration::from_secs(3);

/// The running exporter.
#[derive(Debug)]
pub(crate) struct ExporterHandle {
    task: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl ExporterHandle {
    /// Sends the remaining spans, as far as the collector accepts them in time.
    pub(crate) async fn finish(mut self) {
        // Fails only if the task has ended already.
        self.end.send(()).ok();
        if tokio::time::timeout(LAST, &mut self.task).await.is_err() {
            tracing::warn!("the trace collector did not accept the last spans before the daemon's exit; they are lost");
            self.task.abort();
        }
    }
}

impl Spans {
    /// Starts the export. The first connection is made for the first span.
    pub(crate) fn export(self) -> Result<ExporterHandle, tonic::transport::Error> {
        let TracingConfig { endpoint, sampling_per_million: _, service_name: _, timeout } = &self.config;
        let endpoint = Endpoint::from_shared(endpoint.clone())?
            .user_agent(concat!("crisp/", env!("CARGO_PKG_VERSION")))?
            .connect_timeout(*timeout)
            .timeout(*timeout);
        let client = TraceServiceClient::new(endpoint.connect_lazy());
        let (end, ended) = oneshot::channel();
        let exporter = Exporter { spans: self, client, failing: false };
        Ok(ExporterHandle { task: tokio::spawn(exporter.run(ended)), end })
    }
}

struct Exporter {
    spans: Spans,
    client: TraceServiceClient<Channel>,
    /// True after the failure of the collector was logged.
    failing: bool,
}

impl Exporter {
    async fn run(mut self, mut ended: oneshot::Receiver<()>) {
        let mut batch = Vec::new();
        loop {
            let going_on = tokio::select! {
                full = fill(&mut self.spans.queue, &mut batch) => full,
                _ = &mut ended => false,
            };
            if !going_on {
                break;
            }
            let unsent = tokio::select! {
                () = self.send_with_retry(&batch) => false,
                _ = &mut ended => true,
            };
            if unsent {
                break;
            }
            batch = Vec::new();
        }
        self.spans.queue.close();
        loop {
            // The batch may have arrived already: duplicates are better than losses.
            self.spans.queue.recv_many(&mut batch, BATCH).await;
            if batch.is_empty() {
                return;
            }
            let sent = self.send(&batch).await;
            self.settle(&batch, sent);
            batch.clear();
        }
    }

    /// Sends a batch until it is accepted or rejected, or the attempts are used up.
    async fn send_with_retry(&mut self, batch: &[Span]) {
        let mut pause = PAUSE;
        for attempt in 1..=ATTEMPTS {
            let sent = self.send(batch).await;
            match &sent {
                Err(status) if is_retryable(status.code()) && attempt < ATTEMPTS => {
                    self.warn_once(status);
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Ok(_) | Err(_) => return self.settle(batch, sent),
            }
        }
    }

    /// Returns how many spans of a batch the collector rejected.
    async fn send(&mut self, batch: &[Span]) -> Result<u64, Status> {
        let TracingConfig { service_name, timeout, .. } = &self.spans.config;
        let request = crate::otel::otlp::export(service_name, batch);
        // Also covers a collector that accepts the request and never responds.
        let sent = tokio::time::timeout(*timeout, self.client.export(request)).await;
        let answer = sent.map_err(|_| Status::deadline_exceeded(format!("no response within {timeout:?}")))??;
        let Some(partial) = answer.into_inner().partial_success else { return Ok(0) };
        let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0);
        if rejected > 0 && !self.failing {
            self.failing = true;
            tracing::warn!(
                rejected,
                reason = partial.error_message,
                "the trace collector rejected spans; they are lost"
            );
        }
        Ok(rejected)
    }

    fn settle(&mut self, batch: &[Span], sent: Result<u64, Status>) {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let rejected = match sent {
            Ok(rejected) => rejected.min(count),
            Err(status) => {
                self.warn_once(&status);
                count
            }
        };
        self.spans.counters.drop_spans(rejected);
        self.spans.counters.export_spans(count - rejected);
        if rejected == 0 && std::mem::take(&mut self.failing) {
            tracing::info!("the trace collector accepts spans again");
        }
    }

    /// Logs a failure once, until the next success.
    fn warn_once(&mut self, status: &Status) {
        if !std::mem::replace(&mut self.failing, true) {
            let endpoint = &self.spans.config.endpoint;
            let (code, error) = (status.code(), status.message());
            tracing::warn!(endpoint, ?code, error, "trace collector unreachable; spans are buffered, then dropped");
        }
    }
}

/// Waits for a span, and shortly for more; returns false when the queue is closed.
async fn fill(queue: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) -> bool {
    if queue.recv_many(batch, BATCH).await == 0 {
        return false;
    }
    let more = async { while batch.len() < BATCH && queue.recv_many(batch, BATCH - batch.len()).await > 0 {} };
    // Cancelling a receive from the queue loses nothing.
    tokio::time::timeout(LINGER, more).await.ok();
    true
}

/// Returns true for codes that OpenTelemetry considers retryable.
fn is_retryable(code: Code) -> bool {
    match code {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss
        | Code::ResourceExhausted => true,
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::Internal
        | Code::Unauthenticated => false,
    }
}
