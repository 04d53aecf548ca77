//! The HTTP/1.1 endpoint of metrics: `GET` and `HEAD` of `/metrics`, `/healthz` and `/`.
//!
//! Connections stay open for [`REQUESTS_MAX`] requests, and close when no new request begins in
//! time: silent, slow and idle clients make room for others.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sync::threads::ORDINARY;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

use super::listener::Access;

/// Requests of one connection; more would keep its place from clients that wait.
const REQUESTS_MAX: usize = 16;
/// The longest head of a request, in bytes; hyper accepts no less.
const HEAD_MAX: usize = 8 << 10;
/// The time for the daemon to read its own state; systemd's watchdog has the same check.
const HEALTH_MAX: Duration = Duration::from_secs(5);
const INDEX: &str = concat!(
    "crisp ",
    env!("CARGO_PKG_VERSION"),
    ", a Kubernetes container runtime\n\n\
     /metrics   metrics for Prometheus\n\
     /healthz   200 if the daemon can read its own state, otherwise 503\n"
);
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// The contents of the endpoint. Both functions may block.
pub(super) trait Site: Send + Sync + 'static {
    /// Returns all metrics as text.
    fn metrics(&self) -> String;

    /// Returns when the state of the daemon could be read.
    fn check(&self);
}

/// Serves the requests of one connection; `_place` is free again at its end.
pub(super) async fn serve_connection<P>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    access: Access,
    site: Arc<impl Site>,
    timeout: Duration,
    _place: P,
) {
    let (count, begun) = (AtomicUsize::new(0), Notify::new());
    let service = service_fn(|request: Request<Incoming>| {
        begun.notify_one();
        let is_last = count.fetch_add(1, Ordering::Relaxed) + 1 >= REQUESTS_MAX;
        let (access, site) = (access.clone(), Arc::clone(&site));
        async move {
            let mut response = respond(&request, &access, site).await;
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
                    tracing::debug!(timeout_s = timeout.as_secs(), "closed a connection to the metrics endpoint: no new request in time");
                    return;
                }
            }
        }
    }
}

async fn respond<B>(request: &Request<B>, access: &Access, site: Arc<impl Site>) -> Response<Full<Bytes>> {
    let is_head = request.method() == Method::HEAD;
    if !access.allows(request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes)) {
        let mut response =
            text(StatusCode::UNAUTHORIZED, "expected the token of metrics.token_file\n".to_owned(), is_head);
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return response;
    }
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
