//! The CRI services and crisp's admin service: each handler converts, calls the runtime, converts
//! back.

mod admin;
mod deadline;
mod events;
mod health;
mod held_body;
mod history;
mod image;
mod latency;
mod list_stream;
mod metrics;
mod runtime;
mod stats;
mod status;
mod trace;
mod version;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;

use cri_api::v1::{CreateContainerRequest, PodSandboxMetadata};
use model::ErrorClass;
use sync::threads::ORDINARY;
use tonic::{Request, Response, Status};
use tracing::{Instrument as _, Span};

use crate::convert::Warnings;
use crate::log_names::LogNames;
use crate::otel;
use crate::peer::ConnectedPeer;
use crate::runtime::{Caller, Runtime};
pub(crate) use admin::AdminApi;
pub(crate) use health::HealthState;
pub(crate) use held_body::HeldBodyLayer;
pub(crate) use history::HistoryApi;
pub(crate) use image::ImageApi;
pub(crate) use latency::{Latencies, Latency};
pub(crate) use runtime::RuntimeApi;
pub(crate) use trace::TraceLayer;

/// Maximum size of a request; the kubelet uses the same.
pub const REQUEST_MAX: usize = 16 << 20;

type RpcResult<T> = Result<Response<T>, Status>;

/// Runs `work` to its end also if the client disconnects, so that a rollback is never interrupted.
async fn run_detached<T, E>(work: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, Status>
where
    T: Send + 'static,
    E: ErrorClass + Send + 'static,
{
    outcome(tokio::spawn(work.in_current_span())).await
}

/// Returns the result of a task; a panic fails only its request.
async fn outcome<T, E: ErrorClass, P>(task: impl Future<Output = Result<Result<T, E>, P>>) -> Result<T, Status> {
    match task.await {
        Ok(done) => done.map_err(status::of),
        Err(_) => Err(panicked()),
    }
}

/// Runs `look` on a thread where it may block.
async fn run_blocking<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    // Its log lines belong to the request's span.
    let span = Span::current();
    ORDINARY.run(move || span.in_scope(look)).await.map_err(|_| panicked())
}

fn panicked() -> Status {
    Status::internal("internal error: the request handler panicked; see the daemon log")
}

/// An RPC that crisp does not implement. It is the source of the status, so that the log recognises
/// it.
#[derive(Debug, thiserror::Error)]
#[error("{rpc} is not implemented: {reason}")]
struct UnimplementedRpc {
    rpc: &'static str,
    reason: &'static str,
}

/// Returns the status of an RPC that crisp does not implement.
fn unimplemented_rpc<T>(rpc: &'static str, reason: &'static str) -> Result<T, Status> {
    let error = UnimplementedRpc { rpc, reason };
    let mut status = Status::unimplemented(error.to_string());
    status.set_source(Arc::new(error));
    Err(status)
}

/// Returns whether the status is that of an RPC that crisp does not implement, not of an
/// unsupported field.
fn is_unimplemented_rpc(status: &Status) -> bool {
    status.source().is_some_and(|source| source.is::<UnimplementedRpc>())
}

/// Puts the names of a request to create a pod into its span, before the request is checked.
fn record_new_pod(metadata: Option<&PodSandboxMetadata>) {
    if let Some(PodSandboxMetadata { name, uid, namespace, attempt: _ }) = metadata {
        LogNames::of_meta(namespace, name, uid).record();
    }
}

/// Puts the names of a request to create a container into its span, before the request is checked.
/// The pod's are those of its record, if it has one.
fn record_new_container(runtime: &Runtime, request: &CreateContainerRequest) {
    let CreateContainerRequest { pod_sandbox_id, config, sandbox_config } = request;
    let pod = runtime.pod(pod_sandbox_id).ok();
    let names = match (&pod, sandbox_config.as_ref().and_then(|config| config.metadata.as_ref())) {
        (Some(pod), _) => LogNames::of_pod(pod),
        (None, Some(PodSandboxMetadata { name, uid, namespace, attempt: _ })) => {
            LogNames::of_meta(namespace, name, uid).with_pod_id(pod_sandbox_id)
        }
        (None, None) => LogNames::default().with_pod_id(pod_sandbox_id),
    };
    match config.as_ref().and_then(|config| config.metadata.as_ref()) {
        Some(metadata) => names.with_container_name(&metadata.name).record(),
        None => names.record(),
    }
}

/// Puts the ID of a new pod into the span of its request.
fn record_pod_id(id: &str) {
    LogNames::default().with_pod_id(id).record();
}

/// Puts the ID of a new container into the span of its request.
fn record_container_id(id: &str) {
    LogNames::default().with_container_id(id).record();
}

/// Puts the image's name into the span of the request.
fn record_image(name: &str) {
    Span::current().record("image", name);
}

/// Returns the process that sent the request, and the trace that the request belongs to.
fn caller_of<T>(request: &Request<T>) -> Caller {
    let peer = request.extensions().get::<ConnectedPeer>().and_then(|ConnectedPeer(peer)| peer.as_deref().cloned());
    Caller::client(peer, otel::trace_id(request.metadata().as_ref()))
}

fn log_warnings(warnings: &Warnings) {
    for warning in warnings {
        tracing::warn!("crisp does not use a field of the request, or only partly: {warning}");
    }
}

/// Returns the entry `info` of a verbose response.
fn verbose(wanted: bool, info: impl FnOnce() -> serde_json::Value) -> BTreeMap<String, String> {
    if wanted { [("info".to_owned(), info().to_string())].into() } else { BTreeMap::new() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::ErrorKind;
    use tokio::sync::oneshot;
    use tonic::Code;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("no")]
    struct No;

    impl ErrorClass for No {
        fn kind(&self) -> ErrorKind {
            ErrorKind::Precondition
        }
    }

    #[tokio::test]
    async fn work_continues_after_a_disconnect() {
        let (done, seen) = oneshot::channel();
        let work = run_detached(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            done.send(()).map_err(|()| No)
        });
        assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err());
        assert_eq!(seen.await, Ok(()));
    }

    #[tokio::test]
    async fn an_error_and_a_panic_become_a_status() {
        let failed = run_detached(async { Err::<(), _>(No) }).await.unwrap_err();
        assert_eq!((failed.code(), failed.message()), (Code::FailedPrecondition, "no"));
        let panicked = run_detached(async { if true { panic!("on purpose") } else { Ok::<(), No>(()) } }).await;
        assert_eq!(panicked.unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn the_status_of_a_missing_rpc_names_it_and_keeps_its_type() {
        let status = unimplemented_rpc::<()>("Exec", "streaming is planned").unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
        assert_eq!(status.message(), "Exec is not implemented: streaming is planned");
        assert!(is_unimplemented_rpc(&status) && !is_unimplemented_rpc(&Status::unimplemented(status.message())));
    }
}
