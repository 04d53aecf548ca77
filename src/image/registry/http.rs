//! HTTP clients for pulls, one set per registry configuration.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Url};
use sync::Mutex;

use crate::registry::address::CheckedResolver;
use crate::registry::endpoint::{Registries, is_loopback};
use crate::registry::progress::PullCounters;
use crate::registry::tls;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// More than any registry sends; the client also limits the head of a response to about 400 KiB.
const HEADERS_MAX: usize = 100;

/// The registry configuration and the clients for it. A new configuration gets new clients, so that
/// no certificate or open connection outlives its settings.
#[derive(Debug)]
pub(crate) struct Http {
    pub(crate) registries: Registries,
    /// Maximum time without progress in a transfer; its total time is not limited.
    pub(crate) stall: Duration,
    pub(crate) counters: Arc<PullCounters>,
    /// Created on first use: TLS roots are not loaded for registries without TLS.
    clients: Mutex<HashMap<Transport, Client>>,
}

/// The properties that distinguish the clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Transport {
    trust: TlsTrust,
    /// Bypasses proxies from the environment: requests to this machine must not be sent to another.
    direct: bool,
    /// Connects only to addresses that a registry's response may name.
    checked: bool,
}

/// The trusted CAs and the client certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum TlsTrust {
    /// No TLS.
    Plain,
    /// The system's CAs; no client certificate.
    Machine,
    /// The settings configured for the host of this name.
    Host(String),
}

/// A client that could not be created.
pub(crate) type ClientError = Box<dyn std::error::Error + Send + Sync>;

impl Http {
    pub(crate) fn new(registries: Registries, stall: Duration, counters: Arc<PullCounters>) -> Self {
        Self { registries, stall, counters, clients: Mutex::default() }
    }

    /// Returns the client for a server, a separate one if certificates are configured for this
    /// server; `checked` is for a server that only a response has named.
    pub(crate) fn client(&self, url: &Url, checked: bool) -> Result<Client, ClientError> {
        let own = self.registries.tls(url);
        let trust = match (url.scheme(), own) {
            ("https", Some((host, _))) => TlsTrust::Host(host.to_owned()),
            ("https", None) => TlsTrust::Machine,
            _ => TlsTrust::Plain,
        };
        let way = Transport { trust, direct: url.host_str().is_some_and(is_loopback), checked };
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(&way) {
            return Ok(client.clone());
        }
        let config = match &way.trust {
            TlsTrust::Plain => tls::without_trust()?,
            TlsTrust::Machine => tls::client_config(None)?,
            TlsTrust::Host(_) => tls::client_config(own.map(|(_, tls)| tls))?,
        };
        let client = self.build(&way, config)?;
        clients.insert(way, client.clone());
        Ok(client)
    }

    fn build(&self, way: &Transport, tls: rustls::ClientConfig) -> Result<Client, ClientError> {
        let builder = Client::builder()
            .user_agent(concat!("crisp/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            // One transfer per connection: its buffer is limited, and a slow one does not delay
            // others.
            .http1_only()
            .http1_max_headers(HEADERS_MAX)
            .connect_timeout(CONNECT_TIMEOUT.min(self.stall))
            .pool_idle_timeout(Duration::from_secs(30))
            .tls_backend_preconfigured(tls);
        let builder = if way.direct { builder.no_proxy() } else { builder };
        let builder = if way.checked { builder.dns_resolver(CheckedResolver::new()) } else { builder };
        Ok(builder.build()?)
    }
}

#[cfg(test)]
#[path = "tests/tls.rs"]
mod tests;
