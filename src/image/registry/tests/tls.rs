use model::error_chain::chain;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use crate::limits::Limits;
use crate::registry::endpoint::{Credentials, Registries, Registry};
use crate::registry::tests::ca::{Authority, Demand, Pair, server_config};
use crate::registry::tests::support::{TestEnv, made, me};
use crate::registry::tls::Tls;
use crate::test_support::{Answer, Seen, Server, route, routes};

/// Settings for some hosts; others use TLS with default settings.
fn registries<const N: usize>(hosts: [(&Server, Tls); N]) -> Registries {
    let hosts = hosts.map(|(server, tls)| (server.host.clone(), Registry { tls, ..Registry::default() }));
    Registries { hosts: hosts.into(), ..Registries::default() }
}

fn env<const N: usize>(hosts: [(&Server, Tls); N]) -> TestEnv {
    TestEnv::with(registries(hosts), Limits::default())
}

/// A registry with one image, `x:1`.
async fn registry(pair: &Pair, demand: Option<Demand<'_>>) -> Server {
    let routes = routes(&[("x:1", &made("x"))]);
    Server::secure(server_config(pair, demand), move |request| route(&routes, request)).await
}

async fn pull(env: &TestEnv, server: &Server, credentials: Option<Credentials>) -> Result<(), String> {
    let pulled = env.store.pull_named(&format!("{}/x:1", server.host), credentials).await;
    pulled.map(drop).map_err(|error| chain(&error))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_configured_ca_is_trusted_and_no_other() {
    let (ours, other) = (Authority::new(), Authority::new());
    let server = registry(&ours.server("127.0.0.1"), None).await;
    let error = pull(&env([(&server, other.trusted())]), &server, None).await.unwrap_err();
    assert!(error.contains("server certificate is signed by an unknown CA") && error.contains("`ca`"), "{error}");
    assert!(server.seen().is_empty());
    pull(&env([(&server, ours.trusted())]), &server, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_another_host_name_is_refused() {
    let ours = Authority::new();
    let server = registry(&ours.server("registry.example"), None).await;
    let error = pull(&env([(&server, ours.trusted())]), &server, Some(me())).await.unwrap_err();
    assert!(error.contains("for another host name"), "{error}");
    assert!(server.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_self_signed_certificate_is_trusted_if_configured_as_ca() {
    // The common openssl command creates one that is also a CA certificate.
    for is_ca in [IsCa::Ca(BasicConstraints::Unconstrained), IsCa::NoCa] {
        for (name, works) in [("127.0.0.1", true), ("registry.example", false)] {
            let key = KeyPair::generate().unwrap();
            let mut parameters = CertificateParams::new([name.to_owned()]).unwrap();
            parameters.is_ca = is_ca;
            let certificate = parameters.self_signed(&key).unwrap().pem();
            let server = registry(&Pair { certificate: certificate.clone(), key: key.serialize_pem() }, None).await;
            let named = Tls::default().with_authorities(certificate.as_bytes()).unwrap();
            let outcome = pull(&env([(&server, named)]), &server, None).await;
            assert_eq!(outcome.is_ok(), works, "{is_ca:?} {name} {outcome:?}");
            let other = pull(&env([(&server, Authority::new().trusted())]), &server, None).await;
            assert!(other.is_err());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_is_refused_even_if_configured_as_ca() {
    for is_ca in [IsCa::Ca(BasicConstraints::Unconstrained), IsCa::NoCa] {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        parameters.is_ca = is_ca;
        parameters.not_after = rcgen::date_time_ymd(2001, 1, 1);
        let certificate = parameters.self_signed(&key).unwrap().pem();
        let server = registry(&Pair { certificate: certificate.clone(), key: key.serialize_pem() }, None).await;
        let named = Tls::default().with_authorities(certificate.as_bytes()).unwrap();
        let error = pull(&env([(&server, named)]), &server, None).await.unwrap_err();
        assert!(error.contains("server certificate is expired or not yet valid"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_sent_to_the_server_that_requires_it() {
    let ours = Authority::new();
    let demand = Some(Demand { authority: &ours, must: true });
    let server = registry(&ours.server("127.0.0.1"), demand).await;
    let error = pull(&env([(&server, ours.trusted())]), &server, None).await.unwrap_err();
    assert!(error.contains("`client_cert`"), "{error}");
    assert!(server.seen().is_empty());
    pull(&env([(&server, ours.known())]), &server, None).await.unwrap();
    assert!(server.seen().iter().all(|seen| seen.certified));
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_tokens_and_mirrors_use_the_certificates_of_their_own_host() {
    let ours = Authority::new();
    let may = || Some(Demand { authority: &ours, must: false });
    let blobs = registry(&ours.server("127.0.0.1"), may()).await;
    let tokens = Server::secure(server_config(&ours.server("127.0.0.1"), may()), |request: &Seen| {
        match request.header("authorization") {
            Some(_) => Answer::ok(r#"{"token":"T"}"#),
            None => Answer::status(401),
        }
    })
    .await;
    let (images, elsewhere) = (routes(&[("x:1", &made("x"))]), blobs.host.clone());
    let challenge = format!(r#"Bearer realm="https://{}/token""#, tokens.host);
    let server = Server::secure(server_config(&ours.server("127.0.0.1"), may()), move |request: &Seen| {
        match request.header("authorization") {
            None => Answer::status(401).with("www-authenticate", challenge.clone()),
            Some(_) if request.path.contains("/blobs/") => {
                Answer::status(307).with("location", format!("https://{elsewhere}{}", request.path))
            }
            Some(_) => route(&images, request),
        }
    })
    .await;
    // The client certificate is for the registry alone; the others are trusted by their own
    // sections.
    let others = [(&blobs, ours.trusted()), (&tokens, ours.trusted()), (&server, ours.known())];
    pull(&env(others), &server, Some(me())).await.unwrap();
    assert!(server.seen().iter().all(|seen| seen.certified));
    for other in [&blobs, &tokens] {
        assert!(!other.seen().is_empty() && other.seen().iter().all(|seen| !seen.certified));
    }
    assert!(blobs.seen().iter().all(|seen| seen.header("authorization").is_none()));
    // Without its own section the redirect target is not trusted, whatever the section of the
    // registry or the default.
    let mut few = registries([(&tokens, ours.trusted()), (&server, ours.known())]);
    few.hosts.insert("*".into(), Registry { tls: ours.known(), ..Registry::default() });
    few.hosts.insert(blobs.host.clone(), Registry::default());
    let before = blobs.seen().len();
    let error = pull(&TestEnv::with(few, Limits::default()), &server, Some(me())).await.unwrap_err();
    assert!(error.contains("signed by an unknown CA"), "{error}");
    assert_eq!(blobs.seen().len(), before);
    // As a mirror the same server uses the settings of its host.
    let mut mirrored = registries([(&tokens, ours.trusted()), (&server, ours.known()), (&blobs, ours.trusted())]);
    let mirrors = vec![format!("https://{}", server.host).parse().unwrap()];
    let mirrors = Registry { mirrors, mirrors_only: true, ..Registry::default() };
    mirrored.hosts.insert("registry.example".into(), mirrors);
    let login = format!(r#"{{"auths": {{"{}": {{"username": "me", "password": "secret"}}}}}}"#, server.host);
    mirrored.logins = crate::registry::docker_config::RegistryCredentials::parse(login.as_bytes()).unwrap();
    TestEnv::with(mirrored, Limits::default()).store.pull_named("registry.example/x:1", None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_configuration_drops_the_old_clients() {
    let ours = Authority::new();
    let server = registry(&ours.server("127.0.0.1"), None).await;
    let env = env([(&server, ours.trusted())]);
    pull(&env, &server, None).await.unwrap();
    env.store.set_registries(registries([(&server, Authority::new().trusted())]));
    assert!(pull(&env, &server, None).await.unwrap_err().contains("signed by an unknown CA"));
    env.store.set_registries(registries([(&server, ours.trusted())]));
    pull(&env, &server, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_tls_cannot_redirect_to_plain_http() {
    let ours = Authority::new();
    let plain = Server::start(|_| Answer::ok(r#"{"token":"T"}"#)).await;
    let realm = format!(r#"Bearer realm="http://{}/token""#, plain.host);
    let target = format!("http://{}/", plain.host);
    let answers = [Answer::status(401).with("www-authenticate", realm), Answer::status(302).with("location", target)];
    for (answer, why) in answers.into_iter().zip(["token realm without TLS", "less secure scheme"]) {
        let pair = ours.server("127.0.0.1");
        let server = Server::secure(server_config(&pair, None), move |_| answer.clone()).await;
        let error = pull(&env([(&server, ours.trusted())]), &server, Some(me())).await.unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    assert!(plain.seen().is_empty());
}

#[test]
fn unusable_certificates_and_keys_are_refused_when_loaded() {
    let ours = Authority::new();
    let (one, other) = (ours.server("a"), ours.server("b"));
    let bad =
        |chain: &str, key: &str| Tls::default().with_client(chain.as_bytes(), key.as_bytes()).unwrap_err().to_string();
    assert_eq!(bad(&one.certificate, &other.key), "certificate and key do not match");
    assert_eq!(bad(&one.certificate, "x"), "contains no PEM private key");
    assert_eq!(bad(&one.key, &one.key), "contains no PEM certificates");
    assert!(Tls::default().with_authorities(b"").is_err());
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(Tls::default().with_authorities(broken.as_bytes()).is_err());
    let shown = format!("{:?}", ours.known());
    assert!(!shown.contains("PRIVATE"), "{shown}");
}
