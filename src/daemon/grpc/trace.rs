//! One span and one log line per request.
//!
//! The span has the name of the RPC; handlers add names and IDs of pod and container, or the image.
//! Successful reads are logged at debug, changes at info, failures at error with the error chain.
//! An unsupported field is a warning. Failures that clients expect (not found, an RPC that is not
//! implemented) are logged at debug. Requests and responses are never logged, because they contain
//! secrets.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::field::Empty;
use tracing::{Instrument as _, Level, Span};

use super::latency::Latencies;
use super::{deadline, is_unimplemented_rpc};
use crate::otel;
use crate::otel::Sampler;

/// RPCs whose success is logged at info: they change something. ExecSync does too, but probes call it every few
/// seconds; Import and Export log their own end. A test compares the list with `proto/`.
const CHANGES: [&str; 21] = [
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "UpdateContainerResources",
    "UpdatePodSandboxResources",
    "ReopenContainerLog",
    "UpdateRuntimeConfig",
    "CheckpointContainer",
    "CheckpointPod",
    "RestorePod",
    "Exec",
    "Attach",
    "PortForward",
    "PullImage",
    "RemoveImage",
    "Prune",
    "Remove",
];

#[derive(Debug, Clone, Default)]
pub(crate) struct TraceLayer {
    latencies: Arc<Latencies>,
    sampler: Option<Sampler>,
}

impl TraceLayer {
    /// `latencies` records the duration of each request; `sampler` chooses those that are traced.
    pub(crate) fn new(latencies: Arc<Latencies>, sampler: Option<Sampler>) -> Self {
        Self { latencies, sampler }
    }
}

impl<S> Layer<S> for TraceLayer {
    type Service = Trace<S>;

    fn layer(&self, inner: S) -> Trace<S> {
        Trace { inner, latencies: Arc::clone(&self.latencies), sampler: self.sampler }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Trace<S> {
    inner: S,
    latencies: Arc<Latencies>,
    sampler: Option<Sampler>,
}

impl<S, I, O> Service<Request<I>> for Trace<S>
where
    S: Service<Request<I>, Response = Response<O>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    O: Default + 'static,
{
    type Response = Response<O>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        let rpc = request.uri().path().rsplit('/').next().unwrap_or_default();
        // At level error the span is part of every log line, whatever the log level.
        let span = tracing::error_span!(
            "rpc",
            rpc,
            namespace = Empty,
            pod_name = Empty,
            pod_uid = Empty,
            container_name = Empty,
            pod = Empty,
            container = Empty,
            image = Empty
        );
        if let Some(sampler) = self.sampler {
            sampler.begin(&span, request.uri().path(), request.headers());
        }
        let pending = Pending::new(rpc, span.clone(), Arc::clone(&self.latencies));
        let limit = deadline::of(request.headers());
        let call = deadline::within(limit, self.inner.call(request));
        let traced = async move {
            let response = call.await;
            match &response {
                Ok(answer) if answer.extensions().get::<EndsWithStream>().is_some() => pending.hand_over(),
                _ => pending.answered(response.as_ref().ok().and_then(status_of)),
            }
            response
        };
        Box::pin(traced.instrument(span))
    }
}

/// An extension of the response to a request that ends with its stream. The handler notes its duration and code, ends
/// its span and logs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndsWithStream;

/// Returns the status of a response that failed: the handler's own, or that of a router without a handler.
fn status_of<O>(response: &Response<O>) -> Option<Status> {
    let status = response.extensions().get::<Status>().cloned();
    status.or_else(|| Status::from_header_map(response.headers()))
}

/// A request without a response yet. If dropped, the client disconnected.
struct Pending {
    rpc: String,
    changes: bool,
    began: Instant,
    span: Span,
    open: bool,
    latencies: Arc<Latencies>,
}

impl Pending {
    fn new(rpc: &str, span: Span, latencies: Arc<Latencies>) -> Self {
        let changes = CHANGES.contains(&rpc);
        Self { rpc: rpc.to_owned(), changes, began: Instant::now(), span, open: true, latencies }
    }

    /// Leaves the end of the request to its stream.
    fn hand_over(mut self) {
        self.open = false;
    }

    fn answered(mut self, failure: Option<Status>) {
        self.open = false;
        let duration = self.began.elapsed();
        self.latencies.note(&self.rpc, duration, failure.as_ref().map_or(Code::Ok, Status::code));
        let failure = failure.filter(|status| status.code() != Code::Ok);
        otel::end(&self.span, failure.as_ref().map_or(Code::Ok, Status::code), failure.as_ref().map(Status::message));
        match failure {
            None if self.changes => tracing::info!(duration_us = micros(duration), "request complete"),
            None => tracing::debug!(duration_us = micros(duration), "request complete"),
            Some(status) => {
                let (code, error) = (status.code(), status.message());
                let duration_us = micros(duration);
                match self.level(&status) {
                    Level::DEBUG => tracing::debug!(duration_us, ?code, error, "request refused"),
                    Level::WARN => tracing::warn!(duration_us, ?code, error, "request refused"),
                    _ => tracing::error!(duration_us, ?code, error, "request failed"),
                }
            }
        }
    }
}

impl Pending {
    /// Returns the log level of a failure; clients expect some failures in normal operation.
    fn level(&self, failure: &Status) -> Level {
        match failure.code() {
            Code::NotFound | Code::Unimplemented if !self.changes => Level::DEBUG,
            Code::Unimplemented if is_unimplemented_rpc(failure) => Level::DEBUG,
            Code::Unimplemented => Level::WARN,
            _ => Level::ERROR,
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.open {
            self.latencies.note(&self.rpc, self.began.elapsed(), Code::Cancelled);
            otel::end(&self.span, Code::Cancelled, None);
            self.span.in_scope(|| {
                tracing::debug!(
                    duration_us = micros(self.began.elapsed()),
                    "the client disconnected before the response to its request"
                )
            });
        }
    }
}

/// Returns a duration for the log: a number in every format, with its unit in the key.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io;
    use sync::Mutex;

    use tower::service_fn;
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    /// Collects the log.
    #[derive(Debug, Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Lines;

        fn make_writer(&self) -> Lines {
            self.clone()
        }
    }

    fn logged(rpc: &str, answer: Result<(), Status>) -> String {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(lines.clone())
            .finish();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tracing::subscriber::with_default(subscriber, || {
            let mut service = TraceLayer::default().layer(service_fn(move |_: Request<()>| {
                let answer = answer.clone();
                async move {
                    Span::current().record("pod", "abc");
                    Ok::<_, Infallible>(match answer {
                        Ok(()) => Response::new(String::new()),
                        Err(status) => status.into_http(),
                    })
                }
            }));
            let request = Request::builder().uri(format!("/runtime.v1.RuntimeService/{rpc}")).body(()).unwrap();
            runtime.block_on(service.call(request)).unwrap();
        });
        String::from_utf8(lines.0.lock().clone()).unwrap()
    }

    #[test]
    fn a_change_is_one_line_at_info_with_name_and_ids() {
        let line = logged("RunPodSandbox", Ok(()));
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains(" INFO rpc{rpc=\"RunPodSandbox\" pod=\"abc\"}: "), "{line}");
        assert!(line.contains("request complete duration_us="), "{line}");
    }

    #[test]
    fn a_read_is_at_debug() {
        assert!(logged("ListContainers", Ok(())).contains("DEBUG rpc{"));
        assert!(logged("ContainerStatus", Err(Status::not_found("gone"))).contains("DEBUG rpc{"));
        let later = super::super::unimplemented_rpc::<()>("Exec", "later");
        assert!(logged("Exec", later).contains("DEBUG rpc{"));
    }

    #[test]
    fn every_rpc_of_the_protocol_is_classified() {
        let reads = |rpc: &str| {
            let prefixes = ["List", "Stream"];
            let names = [
                "Version",
                "Status",
                "PodSandboxStatus",
                "ContainerStatus",
                "PodSandboxStats",
                "ContainerStats",
                "ImageStatus",
                "ImageFsInfo",
                "RuntimeConfig",
                "GetContainerEvents",
                "ExecSync",
                "Import",
                "Export",
                "Check",
                "Watch",
            ];
            names.contains(&rpc) || prefixes.iter().any(|prefix| rpc.starts_with(prefix))
        };
        let services = [
            "runtime.v1.RuntimeService",
            "runtime.v1.ImageService",
            "crisp.admin.v1.Images",
            "crisp.admin.v1.Resizes",
            "grpc.health.v1.Health",
        ];
        let rpcs = || cri_api::RPCS.iter().filter(|(service, _)| services.contains(service)).map(|(_, rpc)| *rpc);
        for service in services {
            assert!(cri_api::RPCS.iter().any(|(name, _)| *name == service), "{service}");
        }
        let unclear: Vec<_> = rpcs().filter(|rpc| CHANGES.contains(rpc) == reads(rpc)).collect();
        assert!(unclear.is_empty(), "not in exactly one of the two lists: {unclear:?}");
        let unknown: Vec<_> = CHANGES.iter().filter(|rpc| !rpcs().any(|known| known == **rpc)).collect();
        assert!(unknown.is_empty(), "not in proto/: {unknown:?}");
    }

    #[test]
    fn an_unsupported_field_is_a_warning() {
        let line = logged("CreateContainer", Err(Status::unimplemented("config.CDI_devices: not supported yet")));
        assert!(line.contains(" WARN rpc{") && line.contains("config.CDI_devices"), "{line}");
    }

    #[test]
    fn a_failure_is_one_error_with_its_chain() {
        let line = logged("StartContainer", Err(Status::not_found("starting: no such container")));
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("ERROR rpc{") && line.contains("NotFound"), "{line}");
        assert!(line.contains("starting: no such container"), "{line}");
    }

    #[test]
    fn a_disconnect_is_logged() {
        let lines = Lines::default();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(lines.clone()).finish();
        tracing::subscriber::with_default(subscriber, || drop(Pending::new("Version", Span::none(), Arc::default())));
        assert!(String::from_utf8(lines.0.lock().clone()).unwrap().contains("the client disconnected"));
    }
}
