//! Very slow registries: they delay pulls of their own images only.

use std::sync::Arc;
use std::time::Duration;

use crate::digest::Digest;
use crate::limits::Limits;
use crate::platform::host;
use crate::registry::endpoint::Registries;
use crate::registry::tests::support::{TestEnv, base, made};
use crate::test_support::{Answer, Made, Seen, Server, Tar, gzip, route, routes};

/// Longer than this test takes, and much shorter than the slow pulls.
const LIMIT: Duration = Duration::from_secs(60);

/// Serves `made` as `x:1`, each layer at 100 bytes per second.
async fn trickling(made: &Made) -> Server {
    let (images, layers) = (routes(&[("x:1", made)]), made.layers.clone());
    Server::start(move |request: &Seen| {
        let is_layer = layers.iter().any(|layer| request.path.contains(Digest::of(layer).as_str()));
        Answer { pace: is_layer.then_some((10, Duration::from_millis(100))), ..route(&images, request) }
    })
    .await
}

/// Returns an image of `count` incompressible layers, which take minutes to transfer.
fn long(count: u32) -> Made {
    let noise = |seed: u32| (0..20_000u32).flat_map(move |n| (n ^ seed).wrapping_mul(2_654_435_761).to_le_bytes());
    let layer = |seed| Tar::default().file(&format!("noise-{seed}"), &noise(seed).collect::<Vec<_>>()).end();
    Made::new(&(0..count).map(layer).collect::<Vec<_>>(), gzip)
}

fn pulling(env: &TestEnv, server: &Server) -> tokio::task::JoinHandle<()> {
    let (store, name) = (env.store.clone(), format!("{}/x:1", server.host));
    tokio::spawn(async move { drop(store.pull_named(&name, None).await) })
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_registries_do_not_delay_another_registry() {
    let env = TestEnv::with(Registries::default(), Limits { downloads: 2, ..Limits::default() });
    let slow = [trickling(&long(4)).await, trickling(&long(3)).await, trickling(&long(1)).await];
    let pulls: Vec<_> = slow.iter().map(|server| pulling(&env, server)).collect();
    let asked = || slow.iter().map(|server| server.count("GET", "/blobs/")).sum::<usize>();
    // Configs, and layers for all places.
    tokio::time::timeout(LIMIT, until(|| asked() >= 3 + 2)).await.unwrap();
    let good = made("good");
    let server = Server::of(&[("x:1", &good)]).await;
    let pulled = tokio::time::timeout(LIMIT, env.store.pull_named(&format!("{}/x:1", server.host), None)).await;
    assert_eq!(pulled.expect("the pull is not delayed").unwrap().id, good.id());
    assert!(env.store.traffic().pulling.len() >= 2, "the slow pulls continue");
    pulls.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn claiming_a_layer_without_sending_it_does_not_delay_another_registry() {
    let good = made("good");
    let (os, architecture, _) = host();
    // The same layers by their diff ids, as blobs that are hardly sent.
    let mut claim = long(2);
    let parsed: serde_json::Value = serde_json::from_slice(&good.config).unwrap();
    claim.config = serde_json::to_vec(&serde_json::json!({
        "os": os, "architecture": architecture, "config": {"User": "impostor"}, "rootfs": parsed["rootfs"],
    }))
    .unwrap();
    let mut manifest: serde_json::Value = serde_json::from_slice(&claim.manifest).unwrap();
    manifest["config"]["digest"] = serde_json::json!(Digest::of(&claim.config));
    manifest["config"]["size"] = claim.config.len().into();
    claim.manifest = serde_json::to_vec(&manifest).unwrap();
    let slow = trickling(&claim).await;
    let env = TestEnv::new();
    let pull = pulling(&env, &slow);
    tokio::time::timeout(LIMIT, until(|| slow.count("GET", "/blobs/") == 3)).await.unwrap();
    let server = Server::of(&[("x:1", &good)]).await;
    let pulled = tokio::time::timeout(LIMIT, env.store.pull_named(&format!("{}/x:1", server.host), None)).await;
    assert_eq!(pulled.expect("the pull is not delayed").unwrap().id, good.id());
    assert!(!pull.is_finished());
    pull.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_of_the_same_image_overtakes_one_without_progress() {
    let made = Made::new(&[base(), Tar::default().file("top", &[7; 100_000]).end()], |tar| tar.to_vec());
    let (images, slow) = (routes(&[("x:1", &made)]), Digest::of(&made.layers[1]).to_string());
    let first = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let server = Server::start(move |request: &Seen| {
        let is_first = request.path.contains(&slow) && first.swap(false, std::sync::atomic::Ordering::Relaxed);
        Answer { pace: is_first.then_some((10, Duration::from_millis(100))), ..route(&images, request) }
    })
    .await;
    let env = TestEnv::new();
    let stuck = pulling(&env, &server);
    tokio::time::timeout(LIMIT, until(|| server.count("GET", "/blobs/") == 3)).await.unwrap();
    let pulled = tokio::time::timeout(LIMIT, env.store.pull_named(&format!("{}/x:1", server.host), None)).await;
    assert_eq!(pulled.expect("the pull is not delayed").unwrap().id, made.id());
    // The first pull uses the layer that the other one has downloaded.
    tokio::time::timeout(LIMIT, stuck).await.expect("the first pull ends too").unwrap();
    assert_eq!((env.list("layers").len(), env.list("tmp").len()), (2, 0));
}
