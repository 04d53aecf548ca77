//! Serves `crisp.admin.v1.Resizes` for `crisp history`: lists resizes, and streams new ones.

use std::sync::Arc;

use cri_api::admin;
use cri_api::admin::resizes_server::Resizes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tonic::{Request, Response, Status};

use super::list_stream::Chunks;
use super::{RpcResult, run_blocking, status};
use crate::convert;
use crate::runtime::{PodHistoryItem, Runtime};

/// Concurrent requests; each follower has its place in the ring of events, and each list is in memory.
const REQUESTS: usize = 16;

#[derive(Debug)]
pub(crate) struct HistoryApi {
    runtime: Arc<Runtime>,
    places: Arc<Semaphore>,
}

impl HistoryApi {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, places: Arc::new(Semaphore::new(REQUESTS)) }
    }
}

#[tonic::async_trait]
impl Resizes for HistoryApi {
    type ListResizesStream = Chunks<admin::Resize>;

    async fn list_resizes(&self, request: Request<admin::ListResizesRequest>) -> RpcResult<Self::ListResizesStream> {
        let admin::ListResizesRequest { id, follow } = request.into_inner();
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!("{REQUESTS} requests for the history are running: try again later"))
        })?;
        let selection = self.runtime.history_selection(&id).map_err(status::of)?;
        // Before the list is read, so that no resize is missed.
        let live = if follow { self.runtime.history().follow() } else { None };
        let (runtime, selected) = (Arc::clone(&self.runtime), selection.clone());
        let kept = run_blocking(move || {
            runtime.note_counters();
            runtime.kept_resizes(&selected)
        })
        .await?;
        let sent: Vec<Arc<PodHistoryItem>> = kept.into_iter().map(Arc::new).collect();
        let first = tokio_stream::iter(sent.clone()).map(|item| Ok(convert::history::resize(&item)));
        let Some(live) = live else { return Ok(Response::new(held(first, place))) };
        let later = BroadcastStream::new(live).filter_map(move |item| match item {
            Ok(item) if !selection.has(&item) || sent.contains(&item) => None,
            Ok(item) => Some(Ok(convert::history::resize(&item))),
            // The stream ends here: a client would rely on a stream with a gap.
            Err(BroadcastStreamRecvError::Lagged(lost)) => Some(Err(Status::resource_exhausted(format!(
                "the client reads too slowly, {lost} resizes were lost: list them again"
            )))),
        });
        Ok(Response::new(held(first.chain(until_error(later)), place)))
    }
}

/// Ends a stream after its first error.
fn until_error<T>(
    stream: impl tokio_stream::Stream<Item = Result<T, Status>>,
) -> impl tokio_stream::Stream<Item = Result<T, Status>> {
    let mut failed = false;
    stream.take_while(move |item| !std::mem::replace(&mut failed, item.is_err()))
}

/// Returns the stream, which keeps `place` until it is dropped.
fn held(
    stream: impl tokio_stream::Stream<Item = Result<admin::Resize, Status>> + Send + 'static,
    place: OwnedSemaphorePermit,
) -> Chunks<admin::Resize> {
    Box::pin(stream.map(move |item| {
        let _place = &place;
        item
    }))
}
