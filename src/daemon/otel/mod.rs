//! Spans of requests for an OpenTelemetry collector. Off unless configured.
//!
//! A *span* is a request or a step of one, with its place in a trace. `grpc` starts and ends the
//! spans of requests with the `Sampler`; the `RecordingLayer` is a layer of `tracing` that adds
//! attributes and the spans of steps, and queues finished spans; `exporter` sends them to the
//! collector. The queue is bounded and never waited for: spans that do not fit are counted and
//! dropped.

mod exporter;
mod layer;
pub(crate) mod otlp;
mod span;
mod trace_context;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use config::TracingConfig;
pub(crate) use layer::{RecordingLayer, Sampler, end};
pub(crate) use span::{Span, SpanKind, Value};
use tokio::sync::mpsc;
pub(crate) use trace_context::trace_id;

/// Maximum number of spans in the queue.
const QUEUE: usize = 2048;

/// The spans that a `RecordingLayer` records, to be exported.
#[derive(Debug)]
pub struct Spans {
    config: TracingConfig,
    queue: mpsc::Receiver<Span>,
    counters: Arc<SpanCounters>,
}

/// Counts of exported and dropped spans since the daemon's start.
#[derive(Debug, Default)]
pub(crate) struct SpanCounters {
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl Spans {
    pub(crate) fn new(config: TracingConfig) -> (RecordingLayer, Self) {
        let (sender, queue) = mpsc::channel(QUEUE);
        let counters = Arc::<SpanCounters>::default();
        (RecordingLayer { queue: sender, counters: Arc::clone(&counters) }, Self { config, queue, counters })
    }

    pub(crate) fn sampler(&self) -> Sampler {
        Sampler { per_million: self.config.sampling_per_million }
    }

    pub(crate) fn counters(&self) -> Arc<SpanCounters> {
        Arc::clone(&self.counters)
    }
}

impl SpanCounters {
    fn export_spans(&self, count: u64) {
        self.exported.fetch_add(count, Ordering::Relaxed);
    }

    fn drop_spans(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// Spans that the collector accepted.
    pub(crate) fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Spans that the collector did not accept, or that did not fit into the queue.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
