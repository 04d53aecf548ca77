//! Takes spans to the collector, in the background.

use std::time::Duration;

use config::TracingConfig;
use cri_api::otlp::trace_service_client::TraceServiceClient;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::{Span, Spans};

/// Spans that are sent at once.
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// How often a batch is sent before it is given up.
const ATTEMPTS: u32 = 5;
/// Before a batch is sent again; each time twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// What an end of the daemon waits for the collector, at most.
const LAST: Duration = Duration::from_secs(3);

/// Exports until it is told to end.
#[derive(Debug)]
pub(crate) struct ExporterHandle {
    task: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl ExporterHandle {
    /// Sends what is left, as far as the collector takes it soon.
    pub(crate) async fn finish(mut self) {
        // Fails only when the task is gone already.
        self.end.send(()).ok();
        if tokio::time::timeout(LAST, &mut self.task).await.is_err() {
            tracing::warn!("the trace collector did not accept the last spans");
            self.task.abort();
        }
    }
}

impl Spans {
    /// Begins to export. No connection is made before there is something to send.
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
    /// That the collector does not answer has been told.
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
            // What is in hand may have arrived already: sending it twice is better than not at all.
            self.spans.queue.recv_many(&mut batch, BATCH).await;
            if batch.is_empty() {
                return;
            }
            let sent = self.send(&batch).await;
            self.settle(&batch, sent);
            batch.clear();
        }
    }

    /// Sends a batch until it is taken, refused, or has been tried often enough.
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

    /// How many of a batch the collector does not want.
    async fn send(&mut self, batch: &[Span]) -> Result<u64, Status> {
        let TracingConfig { service_name, timeout, .. } = &self.spans.config;
        let request = crate::otel::otlp::export(service_name, batch);
        // Also for a collector that takes the request and never answers.
        let sent = tokio::time::timeout(*timeout, self.client.export(request)).await;
        let answer = sent.map_err(|_| Status::deadline_exceeded(format!("no response within {timeout:?}")))??;
        let Some(partial) = answer.into_inner().partial_success else { return Ok(0) };
        let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0);
        if rejected > 0 && !self.failing {
            self.failing = true;
            tracing::warn!(rejected, reason = partial.error_message, "the trace collector rejected spans");
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

    /// Once, until it goes well again.
    fn warn_once(&mut self, status: &Status) {
        if !std::mem::replace(&mut self.failing, true) {
            let endpoint = &self.spans.config.endpoint;
            let (code, error) = (status.code(), status.message());
            tracing::warn!(endpoint, ?code, error, "trace collector unreachable; spans are buffered, then dropped");
        }
    }
}

/// Waits for a span and then a little for others; false when there will be none.
async fn fill(queue: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) -> bool {
    if queue.recv_many(batch, BATCH).await == 0 {
        return false;
    }
    let more = async { while batch.len() < BATCH && queue.recv_many(batch, BATCH - batch.len()).await > 0 {} };
    // Taking from the queue loses nothing when it is cut off.
    tokio::time::timeout(LINGER, more).await.ok();
    true
}

/// Whether the same may go well the next time, as OpenTelemetry has it.
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
