//! What the daemon tells about itself in numbers, to whoever asks with `GET /metrics`. Off unless configured.
//!
//! A *family* is a name, a kind, a sentence and samples; [`text`] writes them down, [`http`] answers. Each subject has a
//! file with a function that tells its families, and a line in [`page`]. Nothing is counted here: numbers are taken
//! from those who have them, at the moment they are asked for.

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

/// Who has the numbers.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) spans: Arc<SpanCounters>,
}

/// Begins to answer on `listener`, until what is returned is dropped.
pub(crate) fn write_metrics(listener: Listener, sources: Sources) -> MetricsServer {
    listener.answer_with(move || page(&sources))
}

/// All there is to tell now.
fn page(Sources { runtime, latencies, spans }: &Sources) -> String {
    let mut text = Exposition::default();
    let mut build = text.family("crisp_build_info", Kind::Gauge, "Version of crisp; always 1.");
    build.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let store = runtime.images();
    images::write(&mut text, &store.traffic(), &store.usage(), store.list().len());
    resizes::write(&mut text, runtime.resizes());
    pods::write(&mut text, &runtime.counts());
    requests::write(&mut text, &latencies.all());
    spans::write(&mut text, spans);
    text.into()
}
