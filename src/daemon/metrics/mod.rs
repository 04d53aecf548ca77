//! The metrics endpoint: `/metrics` for Prometheus and `/healthz`. Off unless configured.
//!
//! A *family* has a name, a kind, a help text and samples; [`text`] formats them, [`http`] serves
//! them. Each subject has a file with a function that writes its families, and a line in [`Sources::metrics`].
//! Nothing is counted here: values are read from their owners for each request.

mod cni;
mod drift;
mod effective;
mod exits;
mod http;
mod images;
mod listener;
mod pods;
mod process;
mod requests;
mod resizes;
mod spans;
mod text;

use std::sync::Arc;

use crate::grpc::Latencies;
use crate::otel::SpanCounters;
use crate::runtime::Runtime;
use http::Site;
pub(crate) use listener::{Access, ListenError, Listener, MetricsServer};
use text::{Exposition, Kind};

/// The sources of the values.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    /// The commit that crisp was built from.
    pub(crate) commit: &'static str,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) spans: Arc<SpanCounters>,
}

/// Serves metrics on `listener` to clients that `access` allows, until the result is dropped.
pub(crate) fn write_metrics(listener: Listener, access: Access, sources: Sources) -> MetricsServer {
    listener.answer_with(access, sources)
}

impl Site for Sources {
    fn metrics(&self) -> String {
        let Self { commit, runtime, latencies, spans } = self;
        let mut text = Exposition::default();
        let mut build = text.family(
            "crisp_build_info",
            Kind::Gauge,
            "Version and commit of the crisp daemon in the labels; the value is always 1.",
        );
        build.sample(&[("version", env!("CARGO_PKG_VERSION")), ("commit", commit)], 1);
        process::write(&mut text);
        let store = runtime.images();
        images::write(&mut text, &store.traffic(), &store.usage(), store.list().len());
        resizes::write(&mut text, runtime.resizes(), runtime.resize_notices());
        drift::write(&mut text, runtime.resizes(), &runtime.drift_by_container());
        exits::write(&mut text, runtime.exit_counts());
        cni::write(&mut text, &runtime.cni_operations());
        effective::write(&mut text, &runtime.list_effective_limits(), &runtime.list_refused_shrinks());
        pods::write(&mut text, &runtime.counts());
        requests::write(&mut text, &latencies.all());
        spans::write(&mut text, spans);
        text.into()
    }

    fn check(&self) {
        self.runtime.counts();
    }
}
