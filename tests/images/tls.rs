//! Registries with configured certificates.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tonic::Code;

use crate::support::env::write_secret;
use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::Registry;

/// A CA for tests; its files are in one directory.
struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, as files.
struct Pair {
    certificate: PathBuf,
    key: PathBuf,
}

impl Authority {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "the tests' own authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    fn sign(&self, name: &str) -> Pair {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |end: &str| self.dir.path().join(format!("{name}{end}"));
        let pair = Pair { certificate: file(".pem"), key: file(".key") };
        fs::write(&pair.certificate, certificate.pem()).unwrap();
        write_secret(&pair.key, &key.serialize_pem());
        pair
    }
}

fn full_registry() -> Registry {
    let registry = Registry::start();
    registry.push(&Archive::bare(Layer::noise("file", 1000, 5)), "box", "1");
    registry
}

/// Returns settings where `registry.test` is available only from `mirror`, with `lines` for that
/// mirror.
fn settings(mirror: &Registry, lines: &str) -> String {
    let host = mirror.host();
    format!(
        "[registries.\"registry.test\"]\nmirrors = [\"https://{host}\"]\nmirrors_only = true\n[registries.{host:?}]\n{lines}\n"
    )
}

fn ca(file: &Path) -> String {
    format!("ca = {file:?}\n")
}

const IMAGE: &str = "registry.test/box:1";

#[test]
fn a_certificate_is_trusted_for_its_registry_only() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = authority.sign("127.0.0.1");
    let registry = full_registry().with_tls(&server.certificate, &server.key, None);
    for lines in [String::new(), ca(&stranger.file())] {
        let daemon = Daemon::with_settings(&settings(&registry, &lines));
        let refusal = daemon.client().pull(IMAGE).unwrap_err();
        assert!(refusal.message().contains("certificate"), "{refusal:?}");
        assert_ne!(refusal.code(), Code::NotFound);
    }
    let daemon = Daemon::with_settings(&settings(&registry, &ca(&authority.file())));
    let id = daemon.client().pull(IMAGE).unwrap();
    assert_eq!(daemon.client().image(&id).unwrap().repo_tags, [IMAGE]);
    // Also by its own name: a registry with certificates uses TLS, even on loopback.
    assert_eq!(daemon.client().pull(&format!("{}/box:1", registry.host())).unwrap(), id);

    let misnamed = authority.sign("elsewhere.test");
    let other = full_registry().with_tls(&misnamed.certificate, &misnamed.key, None);
    let daemon = Daemon::with_settings(&settings(&other, &ca(&authority.file())));
    let refusal = daemon.client().pull(IMAGE).unwrap_err();
    assert!(refusal.message().contains("certificate"), "{refusal:?}");
    daemon.check_nothing_left();
}

#[test]
fn a_client_certificate_is_sent_to_a_registry_that_requires_it() {
    let authority = Authority::new();
    let (server, client) = (authority.sign("127.0.0.1"), authority.sign("node.test"));
    let registry = full_registry().with_tls(&server.certificate, &server.key, Some(&authority.file()));
    let without = Daemon::with_settings(&settings(&registry, &ca(&authority.file())));
    let refusal = without.client().pull(IMAGE).unwrap_err();
    assert_ne!(refusal.code(), Code::NotFound, "{refusal:?}");

    let lines = format!("client_cert = {:?}\nclient_key = {:?}\n", client.certificate, client.key);
    let daemon = Daemon::with_settings(&settings(&registry, &(ca(&authority.file()) + &lines)));
    daemon.client().pull(IMAGE).unwrap();
}

#[test]
fn changed_certificates_are_loaded_before_the_next_pull() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = authority.sign("127.0.0.1");
    let registry = full_registry().with_tls(&server.certificate, &server.key, None);
    let file = authority.dir.path().join("changing.pem");
    fs::copy(stranger.file(), &file).unwrap();
    let daemon = Daemon::with_settings(&settings(&registry, &ca(&file)));
    daemon.client().pull(IMAGE).unwrap_err();
    fs::copy(authority.file(), &file).unwrap();
    daemon.client().pull(IMAGE).unwrap();
}
