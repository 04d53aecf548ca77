//! TLS settings of one registry: additional CA certificates, and a client certificate.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::registry::http::ClientError;

/// TLS settings for one host, in addition to the system's CA certificates. Keys are never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Trusted for this host in addition to the system's CAs.
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    pub(crate) client: Option<Client>,
}

/// The client certificate chain and its key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// PEM; kept as text since a parsed key cannot be compared.
    pub(crate) key: Vec<u8>,
}

/// PEM without the expected content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadTls(&'static str);

impl Tls {
    /// Adds CA certificates, from PEM.
    pub fn with_authorities(mut self, pem: &[u8]) -> Result<Self, BadTls> {
        let authorities = certificates(pem)?;
        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            roots
                .add(authority.clone())
                .map_err(|_| BadTls("contains a certificate that is not a valid CA certificate"))?;
        }
        self.authorities.extend(authorities);
        Ok(self)
    }

    /// Sets the client certificate and its key, from PEM.
    pub fn with_client(mut self, chain: &[u8], key: &[u8]) -> Result<Self, BadTls> {
        let client = Client { chain: certificates(chain)?, key: key.to_vec() };
        let parsed = client.key().map_err(|_| BadTls("contains no PEM private key"))?;
        match CertifiedKey::from_der(client.chain.clone(), parsed, &ring::default_provider()) {
            Ok(_) => {}
            Err(rustls::Error::InconsistentKeys(_)) => return Err(BadTls("certificate and key do not match")),
            Err(_) => return Err(BadTls("unsupported type of certificate or key")),
        }
        self.client = Some(client);
        Ok(self)
    }
}

impl Client {
    fn key(&self) -> Result<PrivateKeyDer<'static>, rustls::pki_types::pem::Error> {
        PrivateKeyDer::from_pem_slice(&self.key)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { authorities, client } = self;
        write!(f, "Tls({} authorities, client certificate: {})", authorities.len(), client.is_some())
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, BadTls> {
    let bad = BadTls("contains no PEM certificates");
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(|_| bad)?;
    if all.is_empty() { Err(bad) } else { Ok(all) }
}

/// Returns a configuration for clients that never use TLS: it trusts no server.
pub(crate) fn without_trust() -> Result<ClientConfig, ClientError> {
    let config = builder(&Arc::new(ring::default_provider()))?;
    Ok(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// Returns a configuration with the system's CAs and the settings for the host.
pub(crate) fn client_config(own: Option<&Tls>) -> Result<ClientConfig, ClientError> {
    let authorities = own.map(|tls| &tls.authorities[..]).unwrap_or_default();
    let mut roots = RootCertStore::empty();
    let machine = rustls_native_certs::load_native_certs().certs;
    let (added, _) = roots.add_parsable_certificates(machine.into_iter().chain(authorities.iter().cloned()));
    if added == 0 {
        return Err("no CA certificates found on this machine".into());
    }
    let provider = Arc::new(ring::default_provider());
    let ordinary = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let verifier = Arc::new(Verifier { ordinary, named: authorities.to_vec() });
    let config = builder(&provider)?.dangerous().with_custom_certificate_verifier(verifier);
    match own.and_then(|tls| tls.client.as_ref()) {
        Some(client) => Ok(config.with_client_auth_cert(client.chain.clone(), client.key()?)?),
        None => Ok(config.with_no_client_auth()),
    }
}

fn builder(
    provider: &Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, rustls::Error> {
    ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()
}

/// Verifies server certificates as usual, with one addition: it accepts a server certificate that
/// is itself configured as the CA. The common openssl command for self-signed certificates creates
/// such a CA certificate, which the usual verification refuses as a server certificate.
#[derive(Debug)]
struct Verifier {
    ordinary: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let outcome = self.ordinary.verify_server_cert(server, between, name, ocsp, now);
        let Err(rustls::Error::InvalidCertificate(CertificateError::Other(problem))) = &outcome else {
            return outcome;
        };
        // Dates are checked before this error is returned; the host name is not.
        let is_authority = problem.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity);
        if is_authority && self.named.iter().any(|named| named == server) {
            rustls::client::verify_server_name(&ParsedCertificate::try_from(server)?, name)?;
            return Ok(ServerCertVerified::assertion());
        }
        outcome
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.ordinary.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.ordinary.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.ordinary.supported_verify_schemes()
    }
}
