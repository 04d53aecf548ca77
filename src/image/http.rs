//! The HTTP clients of all pulls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::{Client, Url};

use crate::endpoint::is_loopback;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// A transfer may take as long as it wants, as long as something keeps coming.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Made when first needed: TLS roots are not read for registries without TLS.
#[derive(Debug, Default)]
pub(crate) struct Http(Mutex<HashMap<Way, Client>>);

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Way {
    tls: bool,
    /// Past any proxy the environment names: what is on this machine must not be asked for elsewhere.
    direct: bool,
}

/// A client that could not be made.
pub(crate) type ClientError = Box<dyn std::error::Error + Send + Sync>;

impl Http {
    /// The client for a server.
    pub(crate) fn client(&self, url: &Url) -> Result<Client, ClientError> {
        let way = Way { tls: url.scheme() == "https", direct: url.host_str().is_some_and(is_loopback) };
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&way) {
            return Ok(client.clone());
        }
        let client = build(way)?;
        clients.insert(way, client.clone());
        Ok(client)
    }
}

fn build(way: Way) -> Result<Client, ClientError> {
    let builder = Client::builder()
        .user_agent(concat!("crisp/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(STALL_TIMEOUT)
        .pool_idle_timeout(Duration::from_secs(30))
        .tls_backend_preconfigured(tls_config(way.tls)?);
    let builder = if way.direct { builder.no_proxy() } else { builder };
    Ok(builder.build()?)
}

fn tls_config(with_roots: bool) -> Result<rustls::ClientConfig, ClientError> {
    let mut roots = rustls::RootCertStore::empty();
    if with_roots {
        let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if added == 0 {
            return Err("this machine has no CA certificates".into());
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
