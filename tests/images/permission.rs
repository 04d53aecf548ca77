//! The image store gives an image only to clients that may pull it, and only while all its files
//! exist.

use tonic::Code;

use crate::support::client::container;
use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::Registry;
use crate::support::registry_proxy::{Act, Proxy, Request};

fn private() -> Archive {
    Archive::new("x").on_top(Layer::new(|tar| tar.file("secret", 0o644, b"sesame\n")))
}

#[test]
fn a_manifest_of_a_private_image_does_not_grant_access() {
    let registry = Registry::start();
    registry.push(&private(), "team/box", "1");
    let pieces = private().pieces();
    // It has the manifest and the config, and claims to have every blob.
    let impostor = Proxy::alone(move |request: &Request| match request.verb.as_str() {
        _ if request.is_manifest() => Act::document(pieces.kind, pieces.manifest.bytes.clone()),
        _ if request.is_for(&pieces.config) => Act::document("application/json", pieces.config.bytes.clone()),
        "HEAD" => Act::status("200 OK"),
        _ => Act::status("404 Not Found"),
    });
    let daemon = Daemon::start();
    let client = daemon.client();
    let id = client.pull(&format!("{}/team/box:1", registry.host())).unwrap();
    let before = client.image(&id).unwrap();
    let stolen = format!("{}/box:1", impostor.host());
    let refusal = client.pull(&stolen).unwrap_err();
    assert_eq!(refusal.code(), Code::NotFound, "{refusal:?}");
    assert_eq!((client.image(&stolen), client.image(&id)), (None, Some(before)));
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["cat", "/secret"]);
    config.image.as_mut().unwrap().image = stolen;
    assert_eq!(client.try_create(&pod, config).unwrap_err().code(), Code::NotFound);
}

#[test]
fn an_image_whose_layer_was_deleted_is_absent_until_the_next_pull() {
    let registry = Registry::start();
    registry.push(&private(), "box", "1");
    let daemon = Daemon::start();
    let client = daemon.client();
    let image = format!("{}/box:1", registry.host());
    client.pull(&image).unwrap();
    let layers = daemon.env.root().join("images/layers");
    let layer = std::fs::read_dir(layers).unwrap().map(|entry| entry.unwrap().path());
    let layer = layer.into_iter().find(|layer| layer.join("fs/secret").exists()).unwrap();
    std::fs::remove_dir_all(layer).unwrap();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["cat", "/secret"]);
    config.image.as_mut().unwrap().image = image.clone();
    let refusal = client.try_create(&pod, config.clone()).unwrap_err();
    assert_eq!(refusal.code(), Code::NotFound, "{refusal:?}");
    assert!(refusal.message().contains("was removed because files of a layer are missing"), "{refusal:?}");
    // A kubelet queries this, and pulls.
    assert_eq!(client.image(&image), None);
    client.pull(&image).unwrap();
    assert_eq!(client.finish_config(&pod, config).stdout, "sesame\n");
}
