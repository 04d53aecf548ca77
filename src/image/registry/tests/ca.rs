//! A certificate authority for tests, with certificates of servers and clients.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

use crate::registry::tls::Tls;

/// A CA that signs for servers and clients.
pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(parameters, key) }
    }

    fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> Pair {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new([name.to_owned()]).unwrap();
        parameters.extended_key_usages.push(purpose);
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    pub(crate) fn server(&self, name: &str) -> Pair {
        self.sign(name, ExtendedKeyUsagePurpose::ServerAuth)
    }

    pub(crate) fn trusted(&self) -> Tls {
        Tls::default().with_authorities(self.pem.as_bytes()).unwrap()
    }

    /// Trusts this CA and uses a client certificate signed by it.
    pub(crate) fn known(&self) -> Tls {
        let Pair { certificate, key } = self.sign("node", ExtendedKeyUsagePurpose::ClientAuth);
        self.trusted().with_client(certificate.as_bytes(), key.as_bytes()).unwrap()
    }
}

/// Whether a client certificate of `authority` is required or optional.
pub(crate) struct Demand<'a> {
    pub(crate) authority: &'a Authority,
    pub(crate) must: bool,
}

pub(crate) fn server_config(pair: &Pair, demand: Option<Demand<'_>>) -> rustls::ServerConfig {
    let provider = Arc::new(ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider.clone());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = match demand {
        None => config.with_no_client_auth(),
        Some(Demand { authority, must }) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let builder = if must { builder } else { builder.allow_unauthenticated() };
            config.with_client_cert_verifier(builder.build().unwrap())
        }
    };
    let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    config.with_single_cert(chain, key).unwrap()
}
