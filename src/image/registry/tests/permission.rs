//! Tests that the store gives an image only to clients that may pull it from a registry that has
//! it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::digest::Digest;
use crate::limits::Limits;
use crate::platform::host;
use crate::registry::endpoint::Registries;
use crate::registry::tests::support::{TestEnv, base, made, me};
use crate::store::Store;
use crate::test_support::{Answer, Made, Seen, Server, Tar, gzip, route, routes};
use model::ErrorClass as _;

/// A registry that claims to have every blob, and sends those of `routes`.
async fn boastful(routes: HashMap<String, Vec<u8>>) -> Server {
    Server::start(move |request: &Seen| match route(&routes, request) {
        answer if answer.status == 404 && request.method == "HEAD" && request.path.contains("/blobs/") => {
            Answer::ok("").with("docker-content-digest", request.path.rsplit('/').next().unwrap_or_default())
        }
        answer => answer,
    })
    .await
}

fn without(mut routes: HashMap<String, Vec<u8>>, blobs: &[&Vec<u8>]) -> HashMap<String, Vec<u8>> {
    routes.retain(|_, content| !blobs.contains(&&*content));
    routes
}

#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_a_private_image_does_not_grant_access_to_it() {
    let private = made("private");
    let owner = Server::of(&[("team/x:1", &private)]).await;
    let all = routes(&[("x:1", &private)]);
    // The manifest alone; then also the config; then all but the layer with the secret.
    let known: [Vec<&Vec<u8>>; 3] =
        [private.blobs().collect(), private.layers.iter().collect(), vec![&private.layers[1]]];
    for missing in known {
        let impostor = boastful(without(all.clone(), &missing)).await;
        let env = TestEnv::new();
        let image = env.store.pull_named(&format!("{}/team/x:1", owner.host), Some(me())).await.unwrap();
        let error = env.store.pull_named(&format!("{}/x:1", impostor.host), None).await.unwrap_err();
        assert_eq!(error.kind(), model::ErrorKind::NotFound, "{error:?}");
        assert_eq!(*env.store.find(image.id.as_str()).unwrap(), *image, "the image has no new name");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claiming_layers_of_a_private_image_does_not_grant_access_to_them() {
    let private = made("private");
    let owner = Server::of(&[("team/x:1", &private)]).await;
    // The config is new; its layers are those of the private image, which the registry serves under
    // digests of junk.
    let (os, architecture, _) = host();
    let parsed: serde_json::Value = serde_json::from_slice(&private.config).unwrap();
    let junk = Made::new(&[Tar::default().file("junk-1", b"").end(), Tar::default().file("junk-2", b"").end()], gzip);
    let config = serde_json::to_vec(&serde_json::json!({
        "os": os, "architecture": architecture, "config": {"User": "impostor"}, "rootfs": parsed["rootfs"],
    }))
    .unwrap();
    let mut manifest: serde_json::Value = serde_json::from_slice(&junk.manifest).unwrap();
    manifest["config"]["digest"] = serde_json::json!(Digest::of(&config));
    manifest["config"]["size"] = config.len().into();
    let claim = Made { config, manifest: serde_json::to_vec(&manifest).unwrap(), layers: junk.layers };
    let impostor = Server::of(&[("x:1", &claim)]).await;
    let env = TestEnv::new();
    env.store.pull_named(&format!("{}/team/x:1", owner.host), None).await.unwrap();
    let before = env.list("layers");
    let error = env.store.pull_named(&format!("{}/x:1", impostor.host), None).await.unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::Invalid, "{error:?}");
    assert_eq!((env.store.list().len(), env.list("layers")), (1, before));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_in_the_store_is_not_used_if_the_registry_denies_access() {
    let private = made("private");
    let images = routes(&[("open:1", &private), ("locked:1", &private)]);
    let secret = format!("/v2/locked/blobs/{}", Digest::of(&private.layers[1]));
    let server = Server::start(move |request: &Seen| match request.path == secret {
        true => Answer::status(404),
        false => route(&images, request),
    })
    .await;
    let env = TestEnv::new();
    let image = env.store.pull_named(&format!("{}/open:1", server.host), None).await.unwrap();
    let error = env.store.pull_named(&format!("{}/locked:1", server.host), None).await.unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::NotFound, "{error:?}");
    assert_eq!(env.store.find(image.id.as_str()).unwrap().repo_tags, image.repo_tags);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_already_sent_costs_one_request_also_after_a_restart() {
    let (one, two, three) = (made("one"), made("two"), made("three"));
    let images = [("a:1", &one), ("b:1", &two), ("c:1", &three), ("copy:1", &one)];
    let (first, second) = (Server::of(&images).await, Server::of(&images).await);
    let shared = Digest::of(&one.layers[0]).to_string();
    let asked = |server: &Server| (server.count("HEAD", &shared), server.count("GET", &shared));
    let directory = tempfile::tempdir().unwrap();
    let open = || Arc::new(Store::open(directory.path(), Registries::default(), Limits::default()).unwrap());
    let store = open();
    for (name, wanted) in [("a", (0, 1)), ("b", (1, 1))] {
        store.pull_named(&format!("{}/{name}:1", first.host), None).await.unwrap();
        assert_eq!(asked(&first), wanted, "{name}");
    }
    // Another registry must send it once, although it is in the store; it is not unpacked again.
    let before = std::fs::read_dir(directory.path().join("layers")).unwrap().count();
    store.pull_named(&format!("{}/copy:1", second.host), None).await.unwrap();
    assert_eq!(asked(&second), (0, 1));
    assert_eq!(std::fs::read_dir(directory.path().join("layers")).unwrap().count(), before);
    drop(store);
    let store = open();
    for server in [&first, &second] {
        let (heads, gets) = asked(server);
        store.pull_named(&format!("{}/c:1", server.host), None).await.unwrap();
        assert_eq!(asked(server), (heads + 1, gets));
    }
    assert_eq!(store.list().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_a_deleted_layer_is_pulled_again() {
    let made = made("x");
    let server = Server::of(&[("x:1", &made)]).await;
    let name = format!("{}/x:1", server.host);
    let layer = |env: &TestEnv, lower: model::LayerNumber| env.store.layers_dir().join(lower.to_string());
    // Detected when a container is created, or by a pull.
    for by_container in [true, false] {
        let env = TestEnv::new();
        let image = env.store.pull_named(&name, None).await.unwrap();
        let lowers = env.store.lowers(&image).unwrap();
        let gone = layer(&env, lowers[0]);
        // The whole layer, or only its files.
        std::fs::remove_dir_all(if by_container { gone.clone() } else { gone.join("fs") }).unwrap();
        if by_container {
            let error = env.store.hold("container", &image.id).unwrap_err();
            assert_eq!(error.kind(), model::ErrorKind::NotFound, "{error:?}");
            assert!(error.to_string().contains("pull"), "{error}");
            assert_eq!(env.store.find(&name), None);
            env.store.release("container").unwrap();
        }
        let again = env.store.pull_named(&name, None).await.unwrap();
        assert_eq!((again.id.clone(), env.read(&again, "top")), (image.id.clone(), "x".to_owned()));
        assert_eq!(env.store.hold("container", &again.id).unwrap().len(), 2);
        assert_eq!(env.list("layers").len(), 2, "the old layer is removed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_without_files_is_not_used_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let made = Made::new(&[base()], gzip);
    let server = Server::of(&[("x:1", &made)]).await;
    let open = || Store::open(directory.path(), Registries::default(), Limits::default()).unwrap();
    let store = open();
    let image = store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap();
    std::fs::remove_dir_all(store.layers_dir().join(store.lowers(&image).unwrap()[0].directory())).unwrap();
    drop(store);
    assert_eq!(open().list(), []);
}
