//! Spans of requests, for a collector of OpenTelemetry's. Off unless configured.
//!
//! A *span* is a request, or a step of one, with its place in a trace. `grpc` begins and ends those of requests with the
//! `Sampler`; the `RecordingLayer` is a layer of `tracing` that adds what the handlers note of them, makes spans of the steps
//! within, and puts what has ended into a queue; `exporter` takes it from there to the collector. The queue is bounded and nobody
//! waits for it: what a collector does not take is counted and forgotten.

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

/// Spans that may wait to be exported.
const QUEUE: usize = 2048;

/// The spans that a `RecordingLayer` records, to be exported.
#[derive(Debug)]
pub struct Spans {
    config: TracingConfig,
    queue: mpsc::Receiver<Span>,
    counters: Arc<SpanCounters>,
}

/// What became of spans, since the daemon's start.
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

    /// Those that a collector took.
    pub(crate) fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Those that none took, or that found no place to wait in.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
