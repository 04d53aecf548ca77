//! Serves `crisp.admin.v1.Images` for `crisp image`: import, export, remove, prune.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::image::{ExportError, ImportError, Progress, PruneError, RemoveError};
use cri_api::admin::images_server::Images;
use cri_api::admin::*;
use model::{ErrorClass, ErrorKind};
use sync::Mutex;
use sync::threads::ORDINARY;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};
use tracing::Span;

use super::latency::Latencies;
use super::trace::EndsWithStream;
use super::{RpcResult, outcome, status};
use crate::convert;
use crate::convert::admin::{imported_to_wire, progress_to_wire, pruned_to_wire, removed_to_wire};
use crate::otel;
use crate::runtime::Runtime;

/// Messages queued for a client.
const WAITING: usize = 4;
/// Bytes of an archive in one message.
const PIECE: usize = 256 * 1024;
/// Concurrent exports and imports: each keeps a thread until its client or pipe is done.
const STREAMS: usize = 4;
/// The interval of progress messages.
const TELL_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct AdminApi {
    runtime: Arc<Runtime>,
    latencies: Arc<Latencies>,
    streams: Arc<Semaphore>,
}

impl AdminApi {
    /// `latencies` records the imports and exports at the end of their streams.
    pub(crate) fn new(runtime: Arc<Runtime>, latencies: Arc<Latencies>) -> Self {
        Self { runtime, latencies, streams: Arc::new(Semaphore::new(STREAMS)) }
    }
}

/// An import, export, removal or prune that failed.
#[derive(Debug, thiserror::Error)]
enum AdminError {
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Prune(#[from] PruneError),
    #[error("removing image {name:?}")]
    Remove { name: String, source: RemoveError },
    #[error("image {0:?} not found, so it cannot be removed: `crisp image ls` lists all")]
    NoSuchImage(String),
    #[error("{STREAMS} image exports and imports are already running, the maximum: try again later")]
    TooMany,
}

impl ErrorClass for AdminError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Import(error) => error.kind(),
            Self::Export(error) => error.kind(),
            Self::Prune(error) => error.kind(),
            Self::Remove { source, .. } => source.kind(),
            Self::NoSuchImage(_) => ErrorKind::NotFound,
            Self::TooMany => ErrorKind::Exhausted,
        }
    }
}

type Sender<T> = mpsc::Sender<Result<T, Status>>;
type Stream<T> = ReceiverStream<Result<T, Status>>;

/// Reserves one of the concurrent streams.
fn place(streams: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Status> {
    Arc::clone(streams).try_acquire_owned().map_err(|_| status::of(AdminError::TooMany))
}

/// A request that ends with its stream.
struct StreamedRpc {
    name: &'static str,
    latencies: Arc<Latencies>,
    began: Instant,
    span: Span,
}

impl StreamedRpc {
    fn begin(name: &'static str, latencies: &Arc<Latencies>) -> Self {
        Self { name, latencies: Arc::clone(latencies), began: Instant::now(), span: Span::current() }
    }

    /// Logs and counts the end. `disconnected`: the client did not wait for it.
    fn end(self, failure: Option<&Status>, disconnected: bool) {
        let duration = self.began.elapsed();
        let code = match failure {
            None => Code::Ok,
            Some(_) if disconnected => Code::Cancelled,
            Some(failure) => failure.code(),
        };
        self.latencies.note(self.name, duration, code);
        otel::end(&self.span, code, failure.map(Status::message));
        let _in_span = self.span.enter();
        match failure {
            None => tracing::info!(?duration, "image import or export complete"),
            Some(_) if disconnected => {
                tracing::info!(after = ?duration, "the client of an image import or export disconnected")
            }
            Some(failure) => {
                tracing::error!(?duration, ?code, error = failure.message(), "image import or export failed")
            }
        }
    }
}

/// Runs work that blocks, and streams what it sends; `place` is free again when the work ends, also
/// after a disconnect.
fn streamed<T: Send + 'static>(
    rpc: StreamedRpc,
    place: OwnedSemaphorePermit,
    work: impl FnOnce(&Sender<T>) -> Result<(), AdminError> + Send + 'static,
) -> RpcResult<Stream<T>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let task = ORDINARY.run({
        let (span, sender) = (rpc.span.clone(), sender.clone());
        move || {
            let (_place, _in_span) = (place, span.enter());
            work(&sender)
        }
    });
    tokio::spawn(async move {
        let failure = outcome(task).await.err();
        rpc.end(failure.as_ref(), sender.is_closed());
        if let Some(failure) = failure {
            // The client may have disconnected meanwhile.
            sender.send(Err(failure)).await.ok();
        }
    });
    let mut response = Response::new(ReceiverStream::new(receiver));
    response.extensions_mut().insert(EndsWithStream);
    Ok(response)
}

/// Limits progress messages to one per [`TELL_EVERY`].
struct ProgressThrottle(Mutex<(Instant, Progress)>);

impl ProgressThrottle {
    fn new() -> Self {
        Self(Mutex::new((Instant::now(), Progress::default())))
    }

    /// Stores the progress; returns true if it is time to send it.
    fn note(&self, progress: Progress) -> bool {
        let mut last = self.0.lock();
        last.1 = progress;
        let due = last.0.elapsed() >= TELL_EVERY;
        if due {
            last.0 = Instant::now();
        }
        due
    }

    fn last(&self) -> Progress {
        self.0.lock().1
    }
}

/// Continues while the client is connected.
fn while_open<T>(sender: &Sender<T>) -> ControlFlow<()> {
    if sender.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

#[tonic::async_trait]
impl Images for AdminApi {
    type ImportStream = Stream<ImportProgress>;
    type ExportStream = Stream<Chunk>;

    async fn import(&self, request: Request<ImportRequest>) -> RpcResult<Self::ImportStream> {
        let convert::admin::Import { path, name } = convert::admin::import(request.into_inner()).map_err(status::of)?;
        let store = Arc::clone(self.runtime.images());
        let rpc = StreamedRpc::begin("Import", &self.latencies);
        streamed(rpc, place(&self.streams)?, move |sender| {
            let teller = ProgressThrottle::new();
            let watch = |progress| {
                if teller.note(progress) {
                    // A message that does not fit into the queue is followed by a newer one.
                    sender.try_send(Ok(progress_to_wire(progress))).ok();
                }
                while_open(sender)
            };
            let images = store.import(&path, name.as_deref(), &watch)?;
            // After a disconnect the import is still complete.
            sender.blocking_send(Ok(imported_to_wire(teller.last(), &images))).ok();
            Ok(())
        })
    }

    async fn export(&self, request: Request<ExportRequest>) -> RpcResult<Self::ExportStream> {
        let asked = convert::admin::export(request.into_inner()).map_err(status::of)?;
        let convert::admin::Export { names, compress } = asked;
        let store = Arc::clone(self.runtime.images());
        let rpc = StreamedRpc::begin("Export", &self.latencies);
        streamed(rpc, place(&self.streams)?, move |sender| {
            let teller = ProgressThrottle::new();
            let watch = |progress| {
                if teller.note(progress) {
                    sender.try_send(Ok(chunk(Vec::new(), progress))).ok();
                }
                while_open(sender)
            };
            let mut pieces = ChunkWriter { sender, teller: &teller, piece: Vec::with_capacity(PIECE) };
            store.export(&names, compress, &mut pieces, &watch)?;
            sender.blocking_send(Ok(Chunk { done: true, ..chunk(Vec::new(), teller.last()) })).ok();
            Ok(())
        })
    }

    async fn remove(&self, request: Request<RemoveRequest>) -> RpcResult<RemoveResponse> {
        let RemoveRequest { name, all_tags } = request.into_inner();
        let store = Arc::clone(self.runtime.images());
        let remove = move || match store.remove_named(&name, all_tags) {
            Ok(removed) => removed.ok_or(AdminError::NoSuchImage(name)),
            Err(source) => Err(AdminError::Remove { name, source }),
        };
        let removed = outcome(ORDINARY.run(remove)).await?;
        Ok(Response::new(removed_to_wire(removed)))
    }

    async fn prune(&self, request: Request<PruneRequest>) -> RpcResult<PruneResponse> {
        let PruneRequest { all, dry_run } = request.into_inner();
        let runtime = Arc::clone(&self.runtime);
        let prune = move || {
            let pinned = &runtime.settings().pinned;
            let keep = |image: &::image::Image| pinned.spares(image, all);
            let store = runtime.images();
            let pruned = if dry_run { store.prunable(keep) } else { store.prune(keep) };
            pruned.map_err(AdminError::from)
        };
        let pruned = outcome(ORDINARY.run(prune)).await?;
        Ok(Response::new(pruned_to_wire(&pruned)))
    }
}

fn chunk(data: Vec<u8>, progress: Progress) -> Chunk {
    Chunk { data, bytes: progress.bytes, total: progress.total, done: false }
}

/// Splits an archive into messages.
struct ChunkWriter<'a> {
    sender: &'a Sender<Chunk>,
    teller: &'a ProgressThrottle,
    piece: Vec<u8>,
}

impl io::Write for ChunkWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..count]);
        if self.piece.len() == PIECE {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        let sent = self.sender.blocking_send(Ok(chunk(piece, self.teller.last())));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;

    fn import() -> StreamedRpc {
        StreamedRpc::begin("Import", &Arc::default())
    }

    #[tokio::test]
    async fn work_that_panics_ends_its_stream_with_an_error_and_frees_its_place() {
        let streams = Arc::new(Semaphore::new(1));
        let answer = streamed(import(), place(&streams).unwrap(), |sender: &Sender<Chunk>| {
            sender.blocking_send(Ok(chunk(vec![1], Progress::default()))).unwrap();
            panic!("on purpose")
        });
        let reported: Vec<_> = answer.unwrap().into_inner().collect().await;
        assert_eq!(reported[0].as_ref().unwrap().data, [1]);
        assert_eq!(reported[1].as_ref().unwrap_err().code(), Code::Internal);
        assert_eq!((reported.len(), streams.available_permits()), (2, 1));
    }

    #[tokio::test]
    async fn one_stream_too_many_is_refused_until_another_has_ended() {
        let streams = Arc::new(Semaphore::new(1));
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let answer = streamed::<Chunk>(import(), place(&streams).unwrap(), move |_| {
            ended.recv().ok();
            Ok(())
        });
        let refused = place(&streams).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("4 image exports and imports are already running"), "{}", refused.message());
        end.send(()).unwrap();
        let reported: Vec<_> = answer.unwrap().into_inner().collect().await;
        assert!(reported.is_empty());
        assert!(place(&streams).is_ok());
    }

    #[tokio::test]
    async fn the_end_of_the_stream_decides_about_code_and_duration() {
        let (latencies, streams) = (Arc::<Latencies>::default(), Arc::new(Semaphore::new(1)));
        let run = |end: Result<(), AdminError>| {
            let work = move |_: &Sender<Chunk>| {
                std::thread::sleep(Duration::from_millis(60));
                end
            };
            streamed(StreamedRpc::begin("Export", &latencies), place(&streams).unwrap(), work).unwrap()
        };
        for end in [Ok(()), Err(AdminError::TooMany)] {
            let answer = run(end);
            assert!(answer.extensions().get::<EndsWithStream>().is_some());
            let _all: Vec<_> = answer.into_inner().collect().await;
        }
        drop(run(Err(AdminError::TooMany)));
        while streams.available_permits() == 0 || latencies.all()["Export"].codes.len() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let export = &latencies.all()["Export"];
        assert_eq!(export.codes, [("CANCELLED", 1), ("OK", 1), ("RESOURCE_EXHAUSTED", 1)].into());
        assert!(export.durations.sum() >= Duration::from_millis(180), "{:?}", export.durations);
    }
}
