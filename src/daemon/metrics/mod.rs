//! The metrics endpoint `GET /metrics`. Off unless configured.
//!
//! A *family* has a name, a kind, a help text and samples; [`text`] formats them, [`http`] serves
//! them. Each subject has a file with a function that writes its families, and a line in [`page`].
//! Nothing is counted here: values are read from their owners for each request.

mod effective;
mod http;
mod images;
mod pods;
mod requests;
mod resizes;
mod spans;
mod text;

use std::sync::Arc;

use crate::grpc::Latencies;
use crate::otel::SpanCounters;
use crate::runtime::Runtime;
pub(crate) use http::{ListenError, Listener, MetricsServer};
use text::{Exposition, Kind};

/// The sources of the values.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) spans: Arc<SpanCounters>,
}

/// Serves metrics on `listener` until the result is dropped.
pub(crate) fn write_metrics(listener: Listener, sources: Sources) -> MetricsServer {
    listener.answer_with(move || page(&sources))
}

/// Returns all metrics as text.
fn page(Sources { runtime, latencies, spans }: &Sources) -> String {
    let mut text = Exposition::default();
    let mut build = text.family(
        "crisp_build_info",
        Kind::Gauge,
        "Version of the crisp daemon in the label; the value is always 1.",
    );
    build.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let store = runtime.images();
    images::write(&mut text, &store.traffic(), &store.usage(), store.list().len());
    resizes::write(&mut text, runtime.resizes());
    effective::write(&mut text, &runtime.list_effective_limits(), &runtime.list_refused_shrinks());
    pods::write(&mut text, &runtime.counts());
    requests::write(&mut text, &latencies.all());
    spans::write(&mut text, spans);
    text.into()
}
