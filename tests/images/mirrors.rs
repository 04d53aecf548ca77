//! Mirrors in order, and redirects of a registry to other hosts: which server gets which request
//! and which secret.

use cri_api::v1::AuthConfig;
use serde_json::json;
use tonic::Code;

use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::{Nobody, PASSWORD, Registry, USER};
pub(crate) use crate::support::registry_proxy::{Act, Proxy, Request, Way};

fn credentials() -> AuthConfig {
    AuthConfig { username: USER.into(), password: PASSWORD.into(), ..Default::default() }
}

/// Settings for one registry.
fn mirrored(host: &str, mirrors: &[String], only: bool) -> String {
    let mirrors: Vec<String> = mirrors.iter().map(|mirror| format!("http://{mirror}")).collect();
    format!("[registries.{host:?}]\nmirrors = {mirrors:?}\nmirrors_only = {only}\n")
}

/// Returns an empty section for each of these servers.
fn sections<const N: usize>(servers: [&Proxy; N]) -> String {
    servers.map(|server| format!("[registries.{:?}]\n", server.host())).concat()
}

fn shows_a_secret(request: &Request) -> bool {
    request.header("authorization").is_some() || request.header("cookie").is_some()
}

fn two_layers() -> Archive {
    Archive::new("x").on_top(Layer::noise("noise", 10_000, 3))
}

#[test]
fn mirrors_are_tried_in_order_until_one_has_the_image() {
    let (empty, full) = (Registry::start(), Registry::start());
    full.push(&two_layers(), "some/box", "1");
    let second = Proxy::before(&empty, |_| Act::pass());
    let third = Proxy::before(&full, |_| Act::pass());
    let fourth = Proxy::before(&full, |_| Act::pass());
    let nobody = Nobody::new();
    let mirrors = [nobody.host(), second.host(), third.host(), fourth.host()];
    let daemon = Daemon::with_settings(&mirrored("registry.test:5000", &mirrors, true));
    let client = daemon.client();
    let image = "registry.test:5000/some/box:1";
    let id = client.pull_as(image, credentials()).unwrap();
    assert_eq!(client.image(&id).unwrap().repo_tags, [image], "the name does not contain the mirror");
    assert_eq!(daemon.print_in(image, "wc -c < /noise"), "10000\n");
    assert!(second.count(Request::is_manifest) > 0);
    assert!(third.count(|request| request.path.contains("ns=registry.test")) > 0, "a mirror gets the registry's name");
    assert_eq!(fourth.requests().len(), 0);
    let missing = client.pull("registry.test:5000/some/box:2").unwrap_err();
    // No mirror has it, as far as known: one of them does not answer.
    assert!([Code::NotFound, Code::Unavailable].contains(&missing.code()), "{missing:?}");
    assert!(missing.message().contains("404"), "{missing:?}");
    for mirror in [&second, &third, &fourth] {
        assert_eq!(mirror.count(shows_a_secret), 0);
    }
}

#[test]
fn the_registry_is_tried_after_the_mirrors_unless_mirrors_only_is_set() {
    let (empty, full) = (Registry::start(), Registry::start());
    full.push(&two_layers(), "box", "1");
    let locked = full.with_password();
    let own = Proxy::before(&locked, |_| Act::pass());
    let mirror = Proxy::before(&empty, |_| Act::pass());
    let image = format!("{}/box:1", own.host());
    let nobody = Nobody::new();
    let mirrors = [mirror.host(), nobody.host()];

    let only = Daemon::with_settings(&mirrored(&own.host(), &mirrors, true));
    let refusal = only.client().pull_as(&image, credentials()).unwrap_err();
    assert!([Code::NotFound, Code::Unavailable].contains(&refusal.code()), "{refusal:?}");
    assert_eq!(own.requests().len(), 0);
    only.check_nothing_left();

    let daemon = Daemon::with_settings(&mirrored(&own.host(), &mirrors, false));
    daemon.client().pull_as(&image, credentials()).unwrap();
    assert_eq!(daemon.print_in(&image, "wc -c < /noise"), "10000\n");
    assert!(own.count(shows_a_secret) > 0);
    assert_eq!(mirror.count(shows_a_secret), 0, "the registry's password is not sent to a mirror");
}

#[test]
fn content_changed_by_a_mirror_is_fetched_from_the_next_one() {
    let registry = Registry::start();
    let digest = registry.push(&two_layers(), "box", "1");
    let other = Archive::bare(Layer::noise("file", 100, 4)).pieces();
    // A pull by digest detects a changed manifest; layers and config are identified by digest, too.
    let changes_blobs = |request: &Request| Act::Pass(if request.is_blob() { Way::Flip(100) } else { Way::Whole });
    let mirror = Proxy::before(&registry, changes_blobs);
    let daemon = Daemon::with_settings(&mirrored(&registry.host(), &[mirror.host()], false));
    let client = daemon.client();
    for image in [format!("{}/box:1", registry.host()), format!("{}/box@{digest}", registry.host())] {
        let id = client.pull(&image).unwrap();
        assert_eq!(daemon.print_in(&image, "wc -c < /noise"), "10000\n");
        client.remove_image(&id).unwrap();
        mirror.rule({
            let other = other.clone();
            move |request| match request.is_manifest() {
                true => Act::document(other.kind, other.manifest.bytes.clone()),
                false => Act::pass(),
            }
        });
    }
    daemon.check_nothing_left();
}

#[test]
fn a_redirect_does_not_send_passwords_to_another_host() {
    let open = Registry::start();
    open.push(&two_layers(), "box", "1");
    let locked = open.with_password();
    let elsewhere = Proxy::before(&open, |_| Act::pass());
    let away = elsewhere.host();
    let front = Proxy::before(&locked, move |request| match request.is_blob() {
        true => Act::redirect(format!("http://{away}{}", request.path)),
        false => Act::pass(),
    });
    let listener = Proxy::alone(|_| Act::json(json!({ "token": "x" })));
    // On loopback, a response may only name servers with their own section.
    let daemon = Daemon::with_settings(&sections([&front, &elsewhere, &listener]));
    let client = daemon.client();
    let image = format!("{}/box:1", front.host());
    let id = client.pull_as(&image, credentials()).unwrap();
    assert_eq!(
        elsewhere.count(Request::is_blob),
        3,
        "the config and two layers, one of them from another registry in the store"
    );
    assert!(front.count(shows_a_secret) > 0);
    assert_eq!(elsewhere.count(shows_a_secret), 0);
    client.remove_image(&id).unwrap();

    // A target that requires a password gets none, and its token server is not contacted.
    for scheme in ["Basic".to_owned(), format!("Bearer realm=\"http://{}/token\",service=\"x\"", listener.host())] {
        let ask = scheme.clone();
        elsewhere.rule(move |_| Act::Answer("401 Unauthorized", vec![("WWW-Authenticate", ask.clone())], Vec::new()));
        let refusal = client.pull_as(&image, credentials()).unwrap_err();
        assert!(refusal.message().contains(&elsewhere.host()), "{refusal:?}");
        assert_ne!(refusal.code(), Code::NotFound);
    }
    assert_eq!((listener.requests().len(), elsewhere.count(shows_a_secret)), (0, 0));

    let round = front.host();
    front.rule(move |request| Act::redirect(format!("http://{round}{}", request.path)));
    let refusal = client.pull_as(&image, credentials()).unwrap_err();
    assert!(refusal.message().contains("redirect"), "{refusal:?}");
    daemon.check_nothing_left();
}

#[test]
fn a_registry_cannot_direct_a_pull_to_a_service_of_the_node() {
    let service = Proxy::alone(|_| Act::json(json!({ "token": "open sesame", "schemaVersion": "open sesame" })));
    let port = service.host().rsplit(':').next().unwrap().to_owned();
    let daemon = Daemon::start();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{host}:{port}/sesame");
        let realm = format!("Bearer realm={url:?}");
        let redirect = Act::redirect(url);
        let challenge = Act::Answer("401 Unauthorized", vec![("WWW-Authenticate", realm)], Vec::new());
        for act in [redirect, challenge] {
            let registry = Proxy::alone(move |_| act.clone());
            let refusal = daemon.client().pull_as(&format!("{}/box:1", registry.host()), credentials()).unwrap_err();
            assert_eq!(refusal.code(), Code::InvalidArgument, "{host}: {refusal:?}");
            assert!(!refusal.message().contains("sesame"), "{host}: {refusal:?}");
        }
    }
    assert_eq!(service.requests().len(), 0);
}

#[test]
fn urls_of_a_layer_in_a_manifest_are_ignored() {
    let listener = Proxy::alone(|_| Act::status("404 Not Found"));
    let mut pieces = two_layers().pieces();
    let mut manifest: serde_json::Value = serde_json::from_slice(&pieces.manifest.bytes).unwrap();
    for layer in manifest["layers"].as_array_mut().unwrap() {
        layer["mediaType"] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip".into();
        layer["urls"] = json!([format!("http://{}/layer", listener.host())]);
    }
    pieces.manifest = crate::support::image_fixture::Blob::of(&manifest);
    let registry = Proxy::of(pieces);
    let daemon = Daemon::start();
    let image = format!("{}/box:1", registry.host());
    // The registry has the layers: the URLs do not matter.
    daemon.client().pull_as(&image, credentials()).unwrap();
    registry.rule(|_| Act::status("404 Not Found"));
    assert_eq!(daemon.client().pull(&format!("{}/box:2", registry.host())).unwrap_err().code(), Code::NotFound);
    assert_eq!(listener.requests().len(), 0);
}
