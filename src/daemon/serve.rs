//! `crisp serve`: starts the parts of the daemon in order, and stops them.

use std::io::{self, Write as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use config::{Config, ConfigReloader, DOWNLOADS_MAX, RegistryReloader};
use cri_api::admin::images_server::ImagesServer;
use cri_api::admin::resizes_server::ResizesServer;
use cri_api::health::health_server::HealthServer;
use cri_api::v1::image_service_server::ImageServiceServer;
use cri_api::v1::runtime_service_server::RuntimeServiceServer;
use h2_authority::AuthorityRewriter;
use safe_fs::process_lock::{self, ProcessLock};
use sd_notify::NotifyState;
use sync::Mutex;
use sync::threads::{ORDINARY, STOP};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::grpc::{
    AdminApi, HealthState, HeldBodyLayer, HistoryApi, ImageApi, Latencies, REQUEST_MAX, RuntimeApi, TraceLayer,
};
use crate::images::Images;
use crate::logging::LogLevel;
use crate::otel::Spans;
use crate::peer::PeerStream;
use crate::runtime::Runtime;
use crate::socket::{self, Socket, SocketError};
use crate::stream_server::{BindError, StreamServer};
use crate::{config_watch, metrics, stream_server, watchdog};

/// The time for running requests to end after SIGTERM.
const LAST_REQUESTS: Duration = Duration::from_secs(10);
/// Blocks of this size are returned to the kernel when freed, in bytes: the size of the buffers for
/// downloads.
const LARGE: i32 = 256 << 10;
/// One malloc arena for each permanent thread.
const POOLS: i32 = 2;
/// The pause after a connection could not be accepted, for example because all descriptors are in
/// use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The daemon could not start, or not continue.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(
        "the daemon must run as root, and runs as user {0}: cgroups, mounts and namespaces of pods need root; \
         start it as root, for example with `systemctl start crisp`"
    )]
    NotRoot(u32),
    #[error(
        "the daemon runs in a chroot, which containers could leave: \
         start it in a mount namespace with this root (pivot_root)"
    )]
    Chroot,
    #[error("another daemon uses the state directory {}: stop it, or set another state directory", .0.display())]
    StateInUse(PathBuf),
    #[error("locking the state directory {}", dir.display())]
    Lock { dir: PathBuf, source: io::Error },
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("opening the server for exec, attach and port-forward (stream.listen)")]
    Stream(#[from] BindError),
    #[error("opening the metrics endpoint (metrics.listen)")]
    Metrics(#[from] metrics::ListenError),
    #[error("invalid setting tracing.endpoint")]
    Tracing(#[source] tonic::transport::Error),
    #[error("opening the image store")]
    Images(#[from] image::OpenError),
    #[error("cannot create the async runtime of the daemon")]
    Runtime(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("starting the daemon's worker threads")]
    Threads(#[source] io::Error),
    #[error("installing the daemon's handlers of SIGTERM and SIGINT")]
    Signals(#[source] io::Error),
    #[error("accepting connections on the CRI socket")]
    Listen(#[source] io::Error),
    #[error("serving CRI requests")]
    Serve(#[from] tonic::transport::Error),
}

/// Serves until SIGTERM or SIGINT. `commit` is the one that crisp was built from.
pub fn serve(config: Config, level: LogLevel, spans: Option<Spans>, commit: &'static str) -> Result<(), ServeError> {
    ORDINARY.start().and_then(|()| STOP.start()).map_err(ServeError::Threads)?;
    if !sys::malloc::return_from(LARGE) || !sys::malloc::pools(POOLS) {
        tracing::debug!("cannot configure malloc to return freed memory to the kernel; the daemon may use more memory");
    }
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // A thread per layer download: the maximum that can be configured, and some for name
        // resolution. All other blocking work runs in `sync::threads`.
        .max_blocking_threads(16 + DOWNLOADS_MAX)
        .thread_keep_alive(Duration::from_secs(2))
        .enable_all()
        .build()
        .map_err(ServeError::Threads)?;
    let outcome = threads.block_on(run(config, level, spans, commit));
    // Running work may be interrupted: the next daemon continues from the records.
    threads.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn run(config: Config, level: LogLevel, spans: Option<Spans>, commit: &'static str) -> Result<(), ServeError> {
    let user = rustix::process::geteuid();
    if !user.is_root() {
        return Err(ServeError::NotRoot(user.as_raw()));
    }
    match sys::chroot::is_namespace_root() {
        Ok(true) => {}
        Ok(false) => return Err(ServeError::Chroot),
        Err(error) => tracing::debug!(%error, "cannot determine whether the daemon runs in a chroot; starting anyway"),
    }
    let mut state = lock_directories(&config)?;
    let (socket, listener) = Socket::bind(&config.listen, config.socket_mode, config.socket_group)?;
    let metrics = match &config.metrics {
        Some(config) => {
            let access = metrics::Access::new(&config.access).map_err(metrics::ListenError::from)?;
            Some((metrics::Listener::bind(&config.listen).await?, access))
        }
        None => None,
    };
    let clients = stream_server::Listener::bind(&config.stream).await?;
    let listen = config.listen.clone();
    let registries = Arc::new(RegistryReloader::new(config.origin.clone(), config.registries.clone()));
    let latencies = Arc::new(Latencies::default());
    let settings = Mutex::new(ConfigReloader::new(config.clone()));
    let store = image::Store::open(&images_dir(&config.root), config.registries.clone(), config.pull)?;
    let runtime = Runtime::open(config, Arc::new(store)).await.map_err(|error| ServeError::Runtime(error.into()))?;
    if let Some(replaced) = state.replaced.take() {
        runtime.remove_layers_after(replaced);
    }
    let tally = spans.as_ref().map(Spans::counters).unwrap_or_default();
    let (source, durations) = (Arc::clone(&runtime), Arc::clone(&latencies));
    let sources = metrics::Sources { commit, runtime: source, latencies: durations, spans: tally };
    let telling = metrics.map(|(listener, access)| metrics::write_metrics(listener, access, sources.clone()));
    let metrics = Mutex::new(config_watch::Endpoint { config: runtime.config().metrics.clone(), telling, sources });
    let trace = TraceLayer::new(Arc::clone(&latencies), spans.as_ref().map(Spans::sampler));
    let exporting = spans.map(Spans::export).transpose().map_err(ServeError::Tracing)?;
    let _feeding = watchdog::notify_watchdog(&runtime);
    let settings = config_watch::Settings {
        runtime: Arc::clone(&runtime),
        registries: Arc::clone(&registries),
        level,
        metrics,
        reload: settings,
    };
    let _watching = config_watch::watch(settings).map_err(ServeError::Signals)?;
    let streaming = clients.streaming();
    let _serving = clients.serve(Arc::clone(&runtime));
    let apis = Apis { runtime: Arc::clone(&runtime), registries, latencies, trace, streaming };
    let answered = answer(apis, listener, &listen).await;
    runtime.shutdown_streams().await;
    if let Some(exporting) = exporting {
        exporting.finish().await;
    }
    drop(socket);
    answered
}

/// Returns the image store's directory below a root directory.
pub fn images_dir(root: &Path) -> PathBuf {
    root.join("images")
}

/// Locks the state directory, so that only one daemon uses it while the lock is held.
fn lock_directories(config: &Config) -> Result<ProcessLock, ServeError> {
    // The group needs access to the socket's directory; all other directories are for root alone.
    let shared = config.listen.parent() == Some(&config.state);
    socket::make_dir(&config.state, if shared { 0o711 } else { 0o700 })?;
    process_lock::lock(&config.state.join("lock")).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => ServeError::StateInUse(config.state.clone()),
        _ => ServeError::Lock { dir: config.state.clone(), source },
    })
}

/// The gRPC services.
struct Apis {
    runtime: Arc<Runtime>,
    registries: Arc<RegistryReloader>,
    latencies: Arc<Latencies>,
    trace: TraceLayer,
    streaming: Arc<StreamServer>,
}

/// Serves requests until a signal arrives, then lets the running ones end.
async fn answer(apis: Apis, listener: StdListener, listen: &Path) -> Result<(), ServeError> {
    let Apis { runtime, registries, latencies, trace, streaming } = apis;
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    let listener = UnixListener::from_std(listener).map_err(ServeError::Listen)?;
    let incoming = UnixListenerStream::new(listener).then(|accepted| async move {
        if let Err(error) = &accepted {
            tracing::warn!(%error, "cannot accept a connection on the CRI socket; will retry");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        accepted.map(PeerStream::new).map(AuthorityRewriter::new)
    });
    let runtime_api = RuntimeServiceServer::new(RuntimeApi::new(Arc::clone(&runtime), streaming));
    let image_api = ImageServiceServer::new(ImageApi::new(Images::new(Arc::clone(&runtime), registries)));
    let admin_api = ImagesServer::new(AdminApi::new(Arc::clone(&runtime), latencies));
    let (serving, health_api) = HealthState::new();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = Server::builder()
        .layer(trace)
        .layer(HeldBodyLayer)
        .add_service(runtime_api.max_decoding_message_size(REQUEST_MAX))
        .add_service(image_api.max_decoding_message_size(REQUEST_MAX))
        .add_service(admin_api)
        .add_service(ResizesServer::new(HistoryApi::new(Arc::clone(&runtime))))
        .add_service(HealthServer::new(health_api))
        .serve_with_incoming_shutdown(incoming, async { stopped.await.unwrap_or_default() });
    let mut server = std::pin::pin!(server);

    notify_ready(listen);
    tokio::select! {
        ended = &mut server => return Ok(ended?),
        _ = terminate.recv() => tracing::info!("SIGTERM received: the daemon exits, containers keep running"),
        _ = interrupt.recv() => tracing::info!("SIGINT received: the daemon exits, containers keep running"),
    }
    notify(NotifyState::Stopping);
    // Ends the streams of events and health watches, which do not end by themselves.
    runtime.events().close();
    runtime.history().close();
    serving.end();
    // Fails only if the server has ended already.
    stop.send(()).ok();
    match tokio::time::timeout(LAST_REQUESTS, server).await {
        Ok(ended) => Ok(ended?),
        Err(_) => {
            let waited_s = LAST_REQUESTS.as_secs();
            tracing::warn!(waited_s, "CRI requests are still running; the daemon exits without waiting for them");
            Ok(())
        }
    }
}

/// Notifies systemd, and prints to stdout, that requests are served.
fn notify_ready(listen: &Path) {
    notify(NotifyState::Ready);
    tracing::info!(socket = %listen.display(), release = env!("CARGO_PKG_VERSION"), "the daemon is ready");
    let mut out = io::stdout();
    let reported = writeln!(out, "crisp ready: {}", listen.display()).and_then(|()| out.flush());
    if let Err(error) = reported {
        tracing::debug!(%error, "cannot print to stdout that the daemon is ready");
    }
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot notify systemd of the daemon's state; with Type=notify, systemd may stop the daemon");
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
