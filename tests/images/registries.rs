//! Credentials of pulls: user names and passwords, from the request or from a file.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cri_api::v1::AuthConfig;
use serde_json::json;
use tonic::Code;

use crate::support::client::Client;
use crate::support::env::write_secret;
use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::{PASSWORD, Registry, USER};

/// A small image, for pulls that only have to succeed.
fn small() -> Archive {
    Archive::bare(Layer::noise("file", 1000, 1))
}

fn password(username: &str, password: &str) -> AuthConfig {
    AuthConfig { username: username.into(), password: password.into(), ..Default::default() }
}

fn encoded(password: &str) -> String {
    STANDARD.encode(format!("{USER}:{password}"))
}

/// Checks that the pull is refused for missing credentials, with an error that names the registry
/// and no secret.
fn refused(client: &Client, image: &str, auth: AuthConfig) {
    let refusal = client.pull_as(image, auth.clone()).unwrap_err();
    assert_eq!(refusal.code(), Code::Unauthenticated, "{auth:?}: {refusal:?}");
    assert!(refusal.message().contains(image.split('/').next().unwrap()), "{refusal:?}");
    assert!(auth.password.is_empty() || !refusal.message().contains(&auth.password), "{refusal:?}");
}

#[test]
fn a_password_is_accepted_in_every_form_of_a_request() {
    let open = Registry::start();
    open.push(&small(), "box", "1");
    let locked = open.with_password();
    let daemon = Daemon::start();
    let client = daemon.client();
    let image = format!("{}/box:1", locked.host());
    let with_server = |server: String| AuthConfig { server_address: server, ..password(USER, PASSWORD) };
    let bad = [
        AuthConfig::default(),
        password(USER, "open barley"),
        password("ali", PASSWORD),
        password(USER, ""),
        AuthConfig { auth: encoded("open barley"), ..Default::default() },
        with_server("registry.test".into()),
        with_server(open.host()),
        AuthConfig { registry_token: "neither".into(), ..Default::default() },
        AuthConfig { identity_token: "this".into(), ..Default::default() },
    ];
    for auth in &bad {
        refused(client, &image, auth.clone());
    }
    daemon.check_nothing_left();
    let good = [
        password(USER, PASSWORD),
        AuthConfig { auth: encoded(PASSWORD), ..Default::default() },
        with_server(locked.host()),
        with_server(format!("http://{}/v1/", locked.host())),
    ];
    for auth in good {
        let id = client.pull_as(&image, auth).unwrap();
        assert_eq!(client.image(&image).unwrap().id, id);
        // The image is in the store, but other credentials do not grant access to it.
        refused(client, &image, bad[0].clone());
        refused(client, &image, bad[1].clone());
        client.remove_image(&id).unwrap();
    }
    let malformed = AuthConfig { auth: "!".into(), ..Default::default() };
    assert_eq!(client.pull_as(&image, malformed).unwrap_err().code(), Code::InvalidArgument);
    assert!(!daemon.env.read_log().contains(PASSWORD));
}

#[test]
fn credentials_come_from_a_file_that_may_change_at_any_time() {
    let open = Registry::start();
    open.push(&small(), "box", "1");
    let locked = open.with_password();
    let image = format!("{}/box:1", locked.host());
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("config.json");
    let write = |host: &str, word: &str| {
        let aside = dir.path().join("aside");
        write_secret(&aside, &json!({ "auths": { host: { "auth": encoded(word) } } }).to_string());
        fs::rename(&aside, &file).unwrap();
    };
    write(&locked.host(), "open barley");
    let daemon = Daemon::with_settings(&format!("[image]\ncredentials = {file:?}"));
    let client = daemon.client();
    refused(client, &image, AuthConfig::default());
    write(&locked.host(), PASSWORD);
    let id = client.pull(&image).unwrap();
    // Credentials of a request have precedence for this pull; empty ones are ignored.
    refused(client, &image, password(USER, "open barley"));
    assert_eq!(client.pull_as(&image, AuthConfig::default()).unwrap(), id);
    write(&locked.host(), "open barley");
    refused(client, &image, AuthConfig::default());
    assert_eq!(client.pull_as(&image, password(USER, PASSWORD)).unwrap(), id);
    client.remove_image(&id).unwrap();
    write("registry.test", PASSWORD);
    refused(client, &image, AuthConfig::default());
    write(&format!("https://{}/v2/", locked.host()), PASSWORD);
    client.pull(&image).unwrap();
    let log = daemon.env.read_log();
    assert!(!log.contains(PASSWORD) && !log.contains(&encoded(PASSWORD)), "{log}");
}

#[test]
fn a_short_name_is_searched_in_the_configured_registries() {
    let (first, second) = (Registry::start(), Registry::start());
    first.push(&small(), "other", "1");
    second.push(&small(), "box", "1");
    let daemon = Daemon::with_settings(&format!("[image]\nsearch = [{:?}, {:?}]", first.host(), second.host()));
    let client = daemon.client();
    let id = client.pull("box:1").unwrap();
    assert_eq!(client.image(&id).unwrap().repo_tags, [format!("{}/box:1", second.host())]);
    client.pull("other:1").unwrap();
    assert_eq!(client.image(&id).unwrap().repo_tags.len(), 2, "the same image with another name");
    assert_eq!(client.pull("neither:1").unwrap_err().code(), Code::NotFound);
}
