//! Accepts connections to the metrics endpoint, with TLS if it has a certificate.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use config::{BearerToken, InvalidIdentity, MetricsAccess, MetricsListen, ServerIdentity};
use sync::{Mutex, RwLock};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::http::{Site, serve_connection};
use crate::socket::{Socket, SocketError};

/// The time from the start of a connection or request to its end or the next request; also for a TLS handshake.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that are served at the same time; more wait to be accepted.
pub(super) const CONNECTIONS: usize = 16;
/// Of these, connections of one other host if it can be another node; more are closed at once.
pub(super) const CONNECTIONS_PER_HOST: usize = 4;
/// The pause after a connection could not be accepted, for example because all descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A metrics endpoint that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("opening the metrics endpoint at {address} (metrics.listen)")]
    Address { address: SocketAddr, source: io::Error },
    #[error("registering the socket of the metrics endpoint with the async runtime")]
    Wait(#[source] io::Error),
    #[error("setting up TLS of the metrics endpoint (metrics.tls_cert)")]
    Tls(#[from] InvalidIdentity),
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

/// The requirements for a client, which a reload of the settings replaces.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access(Arc<RwLock<Checks>>);

#[derive(Clone, Default)]
struct Checks {
    tls: Option<TlsAcceptor>,
    token: Option<BearerToken>,
}

/// rustls' settings do not implement Debug.
impl std::fmt::Debug for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Checks")
    }
}

impl Access {
    pub(crate) fn new(access: &MetricsAccess) -> Result<Self, InvalidIdentity> {
        let this = Self::default();
        this.set(access)?;
        Ok(this)
    }

    /// Replaces the certificate for new connections, and the token for the next requests.
    pub(crate) fn set(&self, access: &MetricsAccess) -> Result<(), InvalidIdentity> {
        let MetricsAccess { identity, token } = access;
        let tls = identity.as_ref().map(ServerIdentity::server).transpose()?;
        let tls = tls.map(|server| TlsAcceptor::from(Arc::new(server)));
        *self.0.write() = Checks { tls, token: token.clone() };
        Ok(())
    }

    fn tls(&self) -> Option<TlsAcceptor> {
        self.0.read().tls.clone()
    }

    /// Returns whether a request with this header `Authorization` is allowed.
    pub(super) fn allows(&self, authorization: Option<&[u8]>) -> bool {
        let checks = self.0.read();
        let Some(token) = &checks.token else { return true };
        let bearer = authorization.and_then(|value| value.split_at_checked("Bearer ".len()));
        bearer.is_some_and(|(scheme, value)| scheme.eq_ignore_ascii_case(b"Bearer ") & token.matches(value))
    }
}

/// The running endpoint; ends when dropped.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    task: JoinHandle<()>,
    access: Access,
}

impl MetricsServer {
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    pub(crate) async fn bind(listen: &MetricsListen) -> Result<Self, ListenError> {
        match listen {
            MetricsListen::Address(address) => match TcpListener::bind(address).await {
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

    /// Answers requests that `access` allows with the current contents of `site`.
    pub(super) fn answer_with(self, access: Access, site: impl Site) -> MetricsServer {
        let task = tokio::spawn(self.serve(access.clone(), Arc::new(site), TIMEOUT));
        MetricsServer { task, access }
    }

    pub(super) async fn serve(self, access: Access, site: Arc<impl Site>, timeout: Duration) {
        let (places, hosts) = (Arc::new(Semaphore::new(CONNECTIONS)), Hosts::default());
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (access, site) = (access.clone(), Arc::clone(&site));
            let accepted = match &self {
                Self::Address(listener) => listener.accept().await.map(|(stream, peer)| {
                    let tls = access.tls();
                    // Without TLS the clients are on this node, and all have the same address.
                    let host = if tls.is_some() { hosts.enter(peer.ip()) } else { Some(HostPlace::default()) };
                    if let Some(host) = host {
                        tokio::spawn(talk(stream, tls, access, site, timeout, (place, host)));
                    }
                }),
                Self::Socket { listener, _file } => listener.accept().await.map(|(stream, _)| {
                    tokio::spawn(async move { serve_connection(stream, access, site, timeout, place).await });
                }),
            };
            if let Err(error) = accepted {
                tracing::warn!(%error, "the metrics endpoint cannot accept a connection; will retry");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one TCP connection; `place` is free again at its end.
async fn talk(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    access: Access,
    site: Arc<impl Site>,
    timeout: Duration,
    place: (OwnedSemaphorePermit, HostPlace),
) {
    let Some(tls) = tls else { return serve_connection(stream, access, site, timeout, place).await };
    match tokio::time::timeout(timeout, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, access, site, timeout, place).await,
        Ok(Err(error)) => tracing::debug!(%error, "the TLS handshake of a metrics connection failed"),
        Err(_) => tracing::debug!("the TLS handshake of a metrics connection took too long; closed the connection"),
    }
}

/// The number of connections by the host of the client.
#[derive(Debug, Clone, Default)]
struct Hosts(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection in the count of its host, until it is dropped.
#[derive(Debug, Default)]
struct HostPlace(Option<(Hosts, IpAddr)>);

impl Hosts {
    /// Returns `None` if the host has too many connections.
    fn enter(&self, client: IpAddr) -> Option<HostPlace> {
        let host = host_of(client);
        let mut hosts = self.0.lock();
        let count = hosts.entry(host).or_default();
        if *count >= CONNECTIONS_PER_HOST {
            return None;
        }
        *count += 1;
        Some(HostPlace(Some((self.clone(), host))))
    }
}

impl Drop for HostPlace {
    fn drop(&mut self) {
        let Some((Hosts(hosts), host)) = self.0.take() else { return };
        let mut hosts = hosts.lock();
        if let Some(count) = hosts.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                hosts.remove(&host);
            }
        }
    }
}

/// Returns the address for all clients of one host: it can choose any of the IPv6 addresses in its /64.
fn host_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
