//! Certificates that an operator gives for one registry.

use std::fmt;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What TLS with one host needs beside the machine's own CA certificates. Keys are never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Trusted for this host beside the machine's own.
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    pub(crate) client: Option<Client>,
}

/// The certificate chain that we show, and its key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// PEM, kept as text since a parsed key cannot be compared.
    pub(crate) key: Vec<u8>,
}

/// PEM that does not hold what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadTls(&'static str);

impl Tls {
    /// Adds CA certificates, from PEM.
    pub fn with_authorities(mut self, pem: &[u8]) -> Result<Self, BadTls> {
        self.authorities.extend(certificates(pem)?);
        Ok(self)
    }

    /// Sets the certificate and key that this machine shows, from PEM.
    pub fn with_client(mut self, chain: &[u8], key: &[u8]) -> Result<Self, BadTls> {
        let chain = certificates(chain)?;
        PrivateKeyDer::from_pem_slice(key).map_err(|_| BadTls("holds no PEM private key"))?;
        self.client = Some(Client { chain, key: key.to_vec() });
        Ok(self)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { authorities, client } = self;
        write!(f, "Tls({} authorities, client certificate: {})", authorities.len(), client.is_some())
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, BadTls> {
    let bad = BadTls("holds no PEM certificates");
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(|_| bad)?;
    if all.is_empty() { Err(bad) } else { Ok(all) }
}
