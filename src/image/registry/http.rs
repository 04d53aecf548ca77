//! The HTTP clients of all pulls that go by one set of registries.

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
/// More than any registry sends; together with the client's own bound of some 400 KiB on the head of an answer.
const HEADERS_MAX: usize = 100;

/// The registries, and the clients to reach them: new registries come with new clients, so that no certificate or
/// open connection outlives the settings it belongs to.
#[derive(Debug)]
pub(crate) struct Http {
    pub(crate) registries: Registries,
    /// A transfer may take as long as it wants, but not be silent for longer than this.
    pub(crate) stall: Duration,
    pub(crate) counters: Arc<PullCounters>,
    /// Made when first needed: TLS roots are not read for registries without TLS.
    clients: Mutex<HashMap<Transport, Client>>,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Transport {
    trust: TlsTrust,
    /// Past any proxy the environment names: what is on this machine must not be asked for elsewhere.
    direct: bool,
    /// Only at addresses that a registry's answer may name.
    checked: bool,
}

/// Which certificates are taken and shown.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum TlsTrust {
    /// No TLS.
    Plain,
    /// The machine's own CAs; nothing is shown.
    Machine,
    /// What is configured for the host of this name.
    Host(String),
}

/// A client that could not be made.
pub(crate) type ClientError = Box<dyn std::error::Error + Send + Sync>;

impl Http {
    pub(crate) fn new(registries: Registries, stall: Duration, counters: Arc<PullCounters>) -> Self {
        Self { registries, stall, counters, clients: Mutex::default() }
    }

    /// The client for a server, which is for no other where certificates are configured for this one; `checked` is for
    /// a server that only an answer has named.
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
            // One transfer per connection: its buffer is bounded, and a slow one holds up no other.
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
