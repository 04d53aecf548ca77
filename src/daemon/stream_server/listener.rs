//! Accepts connections, until they have shown a token.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use config::{InvalidIdentity, ServerIdentity, StreamConfig};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::handler::StreamHandler;
use super::unauthenticated::UnauthenticatedConns;
use super::{StreamServer, Tokens};
use crate::runtime::Runtime;

/// The time for a client to send its request, including the TLS handshake.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of a request's head.
const HEAD_MAX: usize = 16 << 10;
/// The pause after a connection could not be accepted, for example because all descriptors are in
/// use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// TCP keepalive: the idle time, the interval, and the number of unanswered probes until a client
/// counts as disconnected.
const ALIVE_AFTER: Duration = Duration::from_secs(30);
const ALIVE_PROBES: u32 = 4;

/// The streaming server could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("opening the server for exec, attach and port-forward at {address}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error("setting up TLS of the server for exec, attach and port-forward (stream.cert and stream.key)")]
    Tls(#[from] InvalidIdentity),
}

/// The listening socket, before the runtime exists.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
    tls: Option<Tls>,
    streaming: Arc<StreamServer>,
}

/// rustls' settings do not implement Debug.
struct Tls(TlsAcceptor);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// The running server; ends when dropped. Upgraded connections continue.
#[derive(Debug)]
pub(crate) struct ListenerTask(JoinHandle<()>);

impl Drop for ListenerTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Listener {
    pub(crate) async fn bind(config: &StreamConfig) -> Result<Self, BindError> {
        let bind_error = |source| BindError::Bind { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        let tls = config.identity.as_ref().map(ServerIdentity::server).transpose()?;
        let tls = tls.map(|server| Tls(TlsAcceptor::from(Arc::new(server))));
        let scheme = if tls.is_some() { "https" } else { "http" };
        Ok(Self { listener, tls, streaming: Arc::new(StreamServer { tokens: Tokens::default(), scheme, address }) })
    }

    /// Returns the server that issues the URLs.
    pub(crate) fn streaming(&self) -> Arc<StreamServer> {
        Arc::clone(&self.streaming)
    }

    pub(crate) fn serve(self, runtime: Arc<Runtime>) -> ListenerTask {
        let Self { listener, tls, streaming } = self;
        let handler = Arc::new(StreamHandler::new(runtime, Arc::clone(&streaming)));
        ListenerTask(tokio::spawn(async move {
            tokio::select! {
                () = accept(listener, tls, handler) => {}
                () = streaming.tokens.forget_in_time() => {}
            }
        }))
    }
}

/// Accepts connections; never returns.
async fn accept(listener: TcpListener, tls: Option<Tls>, handler: Arc<StreamHandler>) {
    let unauthenticated: Arc<UnauthenticatedConns> = Arc::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (handler, tls) = (Arc::clone(&handler), tls.as_ref().map(|tls| tls.0.clone()));
                let (place, inside) = (Arc::clone(&unauthenticated), Arc::clone(&unauthenticated));
                unauthenticated.enter(move |number| {
                    let leave = move || inside.leave(number);
                    let talk = async move {
                        talk(stream, tls, handler, leave).await;
                        place.leave(number);
                    };
                    tokio::spawn(talk).abort_handle()
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the server for exec, attach and port-forward cannot accept a connection; will retry");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one request. `welcome` is called when it has shown a valid token.
async fn talk(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    handler: Arc<StreamHandler>,
    welcome: impl Fn() + Send + Sync + 'static,
) {
    let talk = async {
        prepare(&stream)?;
        match tls {
            None => answer(TokioIo::new(stream), handler, welcome).await,
            Some(tls) => answer(TokioIo::new(tls.accept(stream).await?), handler, welcome).await,
        }
    };
    match tokio::time::timeout(PATIENCE, talk).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, "a connection to the server for exec, attach and port-forward failed")
        }
        Err(_) => tracing::debug!(
            "disconnected a client of the server for exec, attach and port-forward that sent no request in time"
        ),
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, ALIVE_AFTER)?;
    sockopt::set_tcp_keepcnt(stream, ALIVE_PROBES)?;
    Ok(())
}

async fn answer<T>(
    io: TokioIo<T>,
    handler: Arc<StreamHandler>,
    welcome: impl Fn() + Send + Sync + 'static,
) -> io::Result<()>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let welcome = Arc::new(welcome);
    let service = service_fn(move |request| {
        let (handler, welcome) = (Arc::clone(&handler), Arc::clone(&welcome));
        async move { Ok::<_, std::convert::Infallible>(handler.answer(request, &*welcome)) }
    });
    let connection = http1::Builder::new()
        .max_buf_size(HEAD_MAX)
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(io, service);
    connection.with_upgrades().await.map_err(io::Error::other)
}
