//! The HTTP/1.1 endpoint of metrics: `GET` and `HEAD` of `/metrics`, `/healthz` and `/`.
//!
//! Connections stay open for [`REQUESTS_MAX`] requests, and close when no new request begins within
//! [`TIMEOUT`]: silent, slow and idle clients make room for others.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use config::MetricsListen;
use http::header::{ALLOW, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sync::threads::ORDINARY;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use crate::socket::{Socket, SocketError};

/// The time from the start of a connection or request to its end or the next request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that are served at the same time; more wait to be accepted.
const CONNECTIONS: usize = 16;
/// Requests of one connection; more would keep its place from clients that wait.
const REQUESTS_MAX: usize = 16;
/// The longest head of a request, in bytes; hyper accepts no less.
const HEAD_MAX: usize = 8 << 10;
/// The time for the daemon to read its own state; systemd's watchdog has the same check.
const HEALTH_MAX: Duration = Duration::from_secs(5);
/// The pause after a connection could not be accepted, for example because all descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const INDEX: &str = concat!(
    "crisp ",
    env!("CARGO_PKG_VERSION"),
    ", a Kubernetes container runtime\n\n\
     /metrics   metrics for Prometheus\n\
     /healthz   200 if the daemon can read its own state, otherwise 503\n"
);
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// A metrics endpoint that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("opening the metrics endpoint at {address} (metrics.listen)")]
    Address { address: SocketAddr, source: io::Error },
    #[error("registering the socket of the metrics endpoint with the async runtime")]
    Wait(#[source] io::Error),
}

/// The contents of the endpoint. Both functions may block.
pub(super) trait Site: Send + Sync + 'static {
    /// Returns all metrics as text.
    fn metrics(&self) -> String;

    /// Returns when the state of the daemon could be read.
    fn check(&self);
}

/// A listening TCP or Unix socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Address(TcpListener),
    Socket {
        listener: UnixListener,
        /// Removes the socket's file when dropped.
        _file: Socket,
    },
}

/// The running endpoint; ends when dropped.
#[derive(Debug)]
pub(crate) struct MetricsServer(JoinHandle<()>);

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Listener {
    pub(crate) async fn bind(listen: &MetricsListen) -> Result<Self, ListenError> {
        match listen {
            MetricsListen::Loopback(address) => match TcpListener::bind(address).await {
                Ok(listener) => Ok(Self::Address(listener)),
                Err(source) => Err(ListenError::Address { address: *address, source }),
            },
            MetricsListen::Socket(path) => {
                let (file, listener) = Socket::bind(path, 0o600, None)?;
                let listener = UnixListener::from_std(listener).map_err(ListenError::Wait)?;
                Ok(Self::Socket { listener, _file: file })
            }
        }
    }

    /// Answers requests with the current contents of `site`.
    pub(super) fn answer_with(self, site: impl Site) -> MetricsServer {
        MetricsServer(tokio::spawn(self.serve(Arc::new(site), TIMEOUT)))
    }

    async fn serve(self, site: Arc<impl Site>, timeout: Duration) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let site = Arc::clone(&site);
            let accepted = match &self {
                Self::Address(listener) => listener.accept().await.map(|(stream, _)| {
                    tokio::spawn(async move { serve_connection(stream, site, timeout, place).await });
                }),
                Self::Socket { listener, _file } => listener.accept().await.map(|(stream, _)| {
                    tokio::spawn(async move { serve_connection(stream, site, timeout, place).await });
                }),
            };
            if let Err(error) = accepted {
                tracing::warn!(%error, "the metrics endpoint cannot accept a connection; will retry");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves the requests of one connection; `_place` is free again at its end.
async fn serve_connection<P>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    site: Arc<impl Site>,
    timeout: Duration,
    _place: P,
) {
    let (count, begun) = (AtomicUsize::new(0), Notify::new());
    let service = service_fn(|request: Request<Incoming>| {
        begun.notify_one();
        let is_last = count.fetch_add(1, Ordering::Relaxed) + 1 >= REQUESTS_MAX;
        let site = Arc::clone(&site);
        async move {
            let mut response = respond(&request, site).await;
            if is_last || response.status() != StatusCode::OK {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut settings = http1::Builder::new();
    // A client may close its sending side after the request.
    settings.max_buf_size(HEAD_MAX).half_close(true);
    let mut connection = pin!(settings.serve_connection(TokioIo::new(stream), service));
    loop {
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the metrics endpoint failed");
                }
                return;
            }
            request = tokio::time::timeout(timeout, begun.notified()) => {
                if request.is_err() {
                    tracing::debug!(?timeout, "closed a connection to the metrics endpoint: no new request in time");
                    return;
                }
            }
        }
    }
}

async fn respond<B>(request: &Request<B>, site: Arc<impl Site>) -> Response<Full<Bytes>> {
    let is_head = request.method() == Method::HEAD;
    if !is_head && request.method() != Method::GET {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "expected GET or HEAD\n".to_owned(), false);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let (status, body) = match request.uri().path() {
        "/metrics" => metrics(site).await,
        "/healthz" => health(site, HEALTH_MAX).await,
        "/" => (StatusCode::OK, INDEX.to_owned()),
        _ => (StatusCode::NOT_FOUND, "not found: expected /metrics, /healthz or /\n".to_owned()),
    };
    text(status, body, is_head)
}

async fn metrics(site: Arc<impl Site>) -> (StatusCode, String) {
    // Some values are read from disk.
    match ORDINARY.run(move || site.metrics()).await {
        Ok(page) => (StatusCode::OK, page),
        Err(_) => {
            tracing::error!("the metrics endpoint panicked while it wrote the metrics; please report this bug");
            (StatusCode::INTERNAL_SERVER_ERROR, "internal error; see the daemon log\n".to_owned())
        }
    }
}

/// Checks that the daemon's threads run and that its state can be locked.
async fn health(site: Arc<impl Site>, limit: Duration) -> (StatusCode, String) {
    let problem = match tokio::time::timeout(limit, ORDINARY.run(move || site.check())).await {
        Ok(Ok(())) => return (StatusCode::OK, "ok\n".to_owned()),
        Ok(Err(_)) => "reading the daemon's state panicked; see the daemon log\n".to_owned(),
        Err(_) => format!("reading the daemon's state took longer than {limit:?}\n"),
    };
    (StatusCode::SERVICE_UNAVAILABLE, problem)
}

/// Returns a response with this body, or with its length alone for HEAD.
fn text(status: StatusCode, body: String, is_head: bool) -> Response<Full<Bytes>> {
    let length = body.len();
    let mut response = Response::new(if is_head { Full::default() } else { Full::from(body) });
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
