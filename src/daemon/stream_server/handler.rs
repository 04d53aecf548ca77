//! Starts the operation for a request with a valid token.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request as HttpRequest, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use model::error_chain::chain;
use streaming::remote_command::Timeouts;
use streaming::{Io, http_upgrade, port_forward, remote_command};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tracing::{Instrument as _, Span};

use super::places::{Place, Places};
use super::tokens::TokenPayload as _;
use super::{Request, StreamServer};
use crate::runtime::Runtime;

/// Maximum number of connected clients.
const CLIENTS_MAX: usize = 1000;
/// Maximum ports of a client with two channels per port.
const PORTS_MAX: usize = 100;

type Answer = Response<Full<Bytes>>;

/// Redeems tokens and starts their operations.
#[derive(Debug)]
pub(super) struct StreamHandler {
    runtime: Arc<Runtime>,
    streaming: Arc<StreamServer>,
    places: Arc<Places>,
}

impl StreamHandler {
    pub(super) fn new(runtime: Arc<Runtime>, streaming: Arc<StreamServer>) -> Self {
        Self { runtime, streaming, places: Places::new(CLIENTS_MAX) }
    }

    /// Answers a request, and starts its operation after the upgrade. `welcome` is called for a
    /// valid token.
    pub(super) fn answer(&self, mut request: HttpRequest<Incoming>, welcome: &dyn Fn()) -> Answer {
        let Some(asked) = self.redeem(request.uri().path()) else {
            return text(StatusCode::NOT_FOUND, "invalid or expired token\n");
        };
        welcome();
        let Some(place) = self.places.take(asked.pod()) else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "too many connected clients\n");
        };
        let upgraded = hyper::upgrade::on(&mut request);
        let (method, headers) = (request.method(), request.headers());
        let begun = match asked {
            Request::PortForward { pod, ports } => {
                let names = self.runtime.pod_span(&pod);
                http_upgrade::port_forward(method, headers).and_then(|(response, protocol)| {
                    let ports = if ports.is_empty() { ports_in(request.uri().query()) } else { ports };
                    if protocol.needs_ports() && (ports.is_empty() || ports.len() > PORTS_MAX) {
                        return Err(http_upgrade::UpgradeError::bad("expected 1 to 100 ports, as in ?port=80,443"));
                    }
                    let times = self.times();
                    self.begin(place, upgraded, names, move |runtime, io| async move {
                        let forwards = port_forward::open(io, protocol, &ports, times).await;
                        runtime.port_forward(&pod, &ports, forwards).await;
                    });
                    Ok(response)
                })
            }
            Request::Exec { pod, container, command, wants } => {
                let names = self.runtime.container_span(&pod, &container);
                http_upgrade::remote_command(method, headers).map(|(response, protocol)| {
                    let times = self.times();
                    self.begin(place, upgraded, names, move |runtime, io| async move {
                        match remote_command::open(io, protocol, wants, times).await {
                            Ok(remote) => runtime.exec_stream(&container, command, wants, remote).await,
                            Err(error) => tracing::debug!(%error, "exec over a streaming connection failed"),
                        }
                    });
                    response
                })
            }
            Request::Attach { pod, container, wants } => {
                let names = self.runtime.container_span(&pod, &container);
                http_upgrade::remote_command(method, headers).map(|(response, protocol)| {
                    let times = self.times();
                    self.begin(place, upgraded, names, move |runtime, io| async move {
                        match remote_command::open(io, protocol, wants, times).await {
                            Ok(remote) => runtime.attach_stream(&container, wants, remote).await,
                            Err(error) => tracing::debug!(%error, "attach over a streaming connection failed"),
                        }
                    });
                    response
                })
            }
        };
        match begun {
            Ok(response) => response.map(|()| Full::default()),
            Err(refusal) => last(refusal.response().map(|()| Full::from(format!("{refusal}\n")))),
        }
    }

    /// Returns the request for this path, such as `/exec/TOKEN`.
    fn redeem(&self, path: &str) -> Option<Request> {
        let (place, token) = path.strip_prefix('/')?.split_once('/')?;
        self.streaming.tokens.redeem(token).filter(|asked| asked.place() == place)
    }

    fn times(&self) -> Timeouts {
        self.runtime.config().stream.times
    }

    /// Runs `work` after the upgrade of the connection.
    fn begin<W>(
        &self,
        place: Place,
        upgraded: OnUpgrade,
        names: Span,
        work: impl FnOnce(Arc<Runtime>, Io) -> W + Send + 'static,
    ) where
        W: Future<Output = ()> + Send,
    {
        let runtime = Arc::clone(&self.runtime);
        let begun = async move {
            match upgraded.await.map(io_of) {
                Ok(Some(io)) => {
                    tokio::select! {
                        () = work(Arc::clone(&runtime), io) => {}
                        () = place.lost() => {
                            tracing::warn!("too many exec, attach and port-forward clients: disconnected one of this pod, which has the most");
                        }
                    }
                    runtime.request_trim();
                }
                Ok(None) => tracing::error!(
                    "cannot serve exec, attach or port-forward: unknown type of connection; please report this bug"
                ),
                Err(error) => tracing::debug!(
                    error = chain(&error),
                    "the client of an exec, attach or port-forward disconnected before its connection was upgraded"
                ),
            }
        };
        tokio::spawn(begun.instrument(names));
    }
}

fn io_of(upgraded: Upgraded) -> Option<Io> {
    let upgraded = match upgraded.downcast::<TokioIo<TcpStream>>() {
        Ok(plain) => {
            let (reader, writer) = plain.io.into_inner().into_split();
            return Some(Io::new(reader, writer, &plain.read_buf));
        }
        Err(upgraded) => upgraded,
    };
    let secret = upgraded.downcast::<TokioIo<TlsStream<TcpStream>>>().ok()?;
    let (reader, writer) = tokio::io::split(secret.io.into_inner());
    Some(Io::new(reader, writer, &secret.read_buf))
}

/// Returns the ports of a URL, as in `port=80,443&port=8080`; none if one of them is invalid.
fn ports_in(query: Option<&str>) -> Vec<u16> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let values = pairs.filter(|(name, _)| matches!(*name, "port" | "ports")).map(|(_, value)| value);
    let ports = values.flat_map(|value| value.split([',', '%']).map(|port| port.strip_prefix("2C").unwrap_or(port)));
    let ports: Option<Vec<u16>> = ports.map(|port| port.parse().ok().filter(|port| *port > 0)).collect();
    ports.unwrap_or_default()
}

fn text(status: StatusCode, words: &'static str) -> Answer {
    let mut response = Response::new(Full::from(words));
    *response.status_mut() = status;
    last(response)
}

/// Returns a response after which the connection closes. Not a setting of the server, which would
/// also apply to upgrades.
fn last(mut response: Answer) -> Answer {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_from_a_url() {
        assert_eq!(ports_in(Some("port=80,443&x=1&ports=8080")), [80, 443, 8080]);
        assert_eq!(ports_in(Some("port=80%2C443")), [80, 443]);
        for bad in [None, Some(""), Some("port=0"), Some("port=80,x"), Some("port=65536"), Some("port=")] {
            assert!(ports_in(bad).is_empty(), "{bad:?}");
        }
    }
}
