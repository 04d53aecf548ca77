//! Registries that require tokens of a token server.

use std::fs;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use cri_api::v1::AuthConfig;
use rcgen::{CertificateParams, KeyPair};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Code;

use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::{PASSWORD, Registry, USER};
pub(crate) use crate::support::registry_proxy::{Act, Proxy, Request};

const REFRESH: &str = "a token/for&tokens=";

/// Signs tokens that a registry with its certificate accepts.
struct Signer {
    key: EcdsaKeyPair,
    certificate: Vec<u8>,
}

impl Signer {
    /// Also writes the certificate to `file`.
    fn new(file: &std::path::Path) -> Self {
        let pair = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(Vec::new()).unwrap().self_signed(&pair).unwrap();
        fs::write(file, certificate.pem()).unwrap();
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pair.serialize_der(), &random).unwrap();
        Self { key, certificate: certificate.der().to_vec() }
    }

    /// Returns a token to pull from `repository`.
    fn token(&self, repository: &str) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let at = |time: Duration| time.as_secs();
        let head = json!({ "typ": "JWT", "alg": "ES256", "x5c": [STANDARD.encode(&self.certificate)] });
        let claims = json!({
            "iss": "door", "sub": USER, "aud": "shelves", "jti": "1",
            "nbf": at(now) - 60, "iat": at(now) - 60, "exp": at(now) + 600,
            "access": [{ "type": "repository", "name": repository, "actions": ["pull"] }],
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(&head), part(&claims));
        let signature = self.key.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// Returns a token for the password, or for a refresh token; for other credentials, a token without
/// access.
fn token_server(signer: &Signer, request: &Request) -> Act {
    let basic = format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
    match (request.verb.as_str(), request.header("authorization")) {
        ("GET", Some(words)) if words == basic => {
            let asked = request.path.contains("service=shelves") && request.path.contains("repository%3Abox%3Apull");
            assert!(asked, "{request:?}");
            Act::json(json!({ "token": signer.token("box"), "expires_in": 300 }))
        }
        ("GET", None) => Act::json(json!({ "token": signer.token("nothing") })),
        ("POST", None) if request.body.contains("refresh_token=a+token%2Ffor%26tokens%3D") => {
            Act::json(json!({ "access_token": signer.token("box") }))
        }
        _ => Act::status("401 Unauthorized"),
    }
}

#[test]
fn a_token_is_fetched_for_all_credentials_except_a_registry_token() {
    let dir = TempDir::new().unwrap();
    let roots = dir.path().join("roots.pem");
    let signer = Signer::new(&roots);
    let ready = signer.token("box");
    let server = Proxy::alone(move |request| token_server(&signer, request));
    let open = Registry::start();
    open.push(&Archive::bare(Layer::noise("file", 1000, 2)), "box", "1");
    let locked = open.with_tokens(&format!("http://{}/token", server.host()), &roots);
    let front = Proxy::before(&locked, |_| Act::pass());
    let daemon = Daemon::with_settings(&format!("[registries.{:?}]\n", server.host()));
    let client = daemon.client();
    let image = format!("{}/box:1", front.host());

    let basic = |password: &str| AuthConfig { username: USER.into(), password: password.into(), ..Default::default() };
    let identity = |token: &str| AuthConfig { identity_token: token.into(), ..Default::default() };
    let registry = |token: &str| AuthConfig { registry_token: token.into(), ..Default::default() };
    for auth in [AuthConfig::default(), basic("open barley"), identity("none"), registry("none")] {
        let refusal = client.pull_as(&image, auth.clone()).unwrap_err();
        assert_eq!(refusal.code(), Code::Unauthenticated, "{auth:?}: {refusal:?}");
    }
    daemon.check_nothing_left();
    for auth in [basic(PASSWORD), identity(REFRESH), registry(&ready)] {
        let before = server.requests().len();
        let id = client.pull_as(&image, auth.clone()).unwrap_or_else(|refusal| panic!("{auth:?}: {refusal:?}"));
        let asked = server.requests().len() - before;
        assert_eq!(asked, usize::from(auth.registry_token.is_empty()), "one token per pull: {auth:?}");
        client.remove_image(&id).unwrap();
    }
    // The registry itself receives only tokens.
    let all = front.requests();
    assert!(all.iter().all(|request| request.header("authorization").is_none_or(|words| words.starts_with("Bearer "))));
}
