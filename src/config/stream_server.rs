//! Settings of the server for exec, attach and port-forward.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use streaming::remote_command::Timeouts;

use super::InvalidSetting;
use super::file::RawStream;
use super::registries::{Readers, is_empty, read, unusable};
use super::resolve::{at_least, invalid};

/// In seconds: seven days.
const IDLE_MAX: u64 = 7 * 86_400;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// Port 0: the kernel selects a free port.
    pub listen: SocketAddr,
    /// The certificate for TLS; `None`: plain HTTP.
    pub identity: Option<ServerIdentity>,
    pub times: Timeouts,
}

/// A certificate chain and its key, as PEM. Checked to match each other; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    chain: Vec<u8>,
    key: Vec<u8>,
}

impl fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerIdentity")
    }
}

/// A certificate or key that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidIdentity(String);

impl ServerIdentity {
    /// `chain` and `key` are PEM.
    #[must_use]
    pub fn new(chain: Vec<u8>, key: Vec<u8>) -> Self {
        Self { chain, key }
    }

    /// Reads the files of two settings, each with its key; `None` without both.
    pub(super) fn read(cert: (&str, &Path), key: (&str, &Path)) -> Result<Option<Self>, InvalidSetting> {
        match (is_empty(cert.1), is_empty(key.1)) {
            (true, true) => Ok(None),
            (false, true) => Err(invalid(cert.0, format_args!("requires {}", key.0))),
            (true, false) => Err(invalid(key.0, format_args!("requires {}", cert.0))),
            (false, false) => {
                let chain = read(cert.0, cert.1, Readers::Anyone)?;
                let identity = Self::new(chain, read(key.0, key.1, Readers::OwnerAlone)?);
                identity.server().map_err(|bad| unusable(cert.0, cert.1, format_args!("cannot be used: {bad}")))?;
                Ok(Some(identity))
            }
        }
    }

    /// Returns the TLS configuration of a server with this certificate.
    pub fn server(&self) -> Result<ServerConfig, InvalidIdentity> {
        let bad = |what: &str, error: &dyn fmt::Display| InvalidIdentity(format!("{what}: {error}"));
        let chain = CertificateDer::pem_slice_iter(&self.chain).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| bad("certificate is not valid PEM", &error))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| bad("key is not valid PEM", &error))?;
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| bad("certificate and key do not match or are not supported", &error))
    }
}

pub(super) fn resolve(raw: &RawStream) -> Result<StreamConfig, InvalidSetting> {
    let RawStream { listen, cert, key, idle_timeout, creation_timeout } = raw;
    let identity = ServerIdentity::read(("stream.cert", cert), ("stream.key", key))?;
    let at = "stream.listen";
    let address: SocketAddr =
        listen.parse().map_err(|_| invalid(at, format_args!("must be ADDRESS:PORT, got {listen:?}")))?;
    if address.ip().is_unspecified() {
        return Err(invalid(at, format_args!("must be a specific address, got {address}")));
    }
    if !address.ip().is_loopback() && identity.is_none() {
        let problem = format_args!("{address} is not a loopback address: set stream.cert and stream.key");
        return Err(invalid(at, problem));
    }
    for (key, seconds) in [("stream.idle_timeout", idle_timeout), ("stream.creation_timeout", creation_timeout)] {
        at_least(key, *seconds, 1)?;
        if *seconds > IDLE_MAX {
            return Err(invalid(key, format_args!("must be at most {IDLE_MAX}, got {seconds}")));
        }
    }
    let (idle, creation) = (Duration::from_secs(*idle_timeout), Duration::from_secs(*creation_timeout));
    Ok(StreamConfig { listen: address, identity, times: Timeouts { idle, creation } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(change: impl FnOnce(&mut RawStream)) -> String {
        let mut raw = RawStream::default();
        change(&mut raw);
        resolve(&raw).unwrap_err().to_string()
    }

    #[test]
    fn an_address_that_is_not_loopback_requires_tls() {
        assert!(problem(|raw| raw.listen = "192.0.2.1:10010".into()).contains("set stream.cert and stream.key"));
        assert!(problem(|raw| raw.listen = "0.0.0.0:10010".into()).contains("must be a specific address"));
        assert!(problem(|raw| raw.listen = "localhost:1".into()).contains("ADDRESS:PORT"));
        assert!(problem(|raw| raw.cert = "/x".into()).starts_with("stream.cert"));
        assert!(problem(|raw| raw.key = "/x".into()).starts_with("stream.key"));
        assert!(problem(|raw| raw.idle_timeout = 0).starts_with("stream.idle_timeout"));
        assert!(problem(|raw| raw.creation_timeout = u64::MAX).starts_with("stream.creation_timeout"));
        assert_eq!(resolve(&RawStream::default()).unwrap().listen.port(), 0);
    }
}
