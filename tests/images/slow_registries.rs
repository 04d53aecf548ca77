//! Very slow registries, and concurrent pulls from others.

use std::time::{Duration, Instant};

use crate::support::client::Client;
use crate::support::harness::{Daemon, seconds, slow, wait_for};
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::Registry;
use crate::support::registry_proxy::{Act, Proxy, Request, Way};

#[test]
fn a_very_slow_registry_does_not_delay_another_registry() {
    let registry = Registry::start();
    let layers = (0..3).fold(Archive::bare(Layer::noise("noise-3", 200_000, 33)), |archive, number| {
        archive.on_top(Layer::noise(&format!("noise-{number}"), 200_000, 30 + number))
    });
    registry.push(&layers, "long", "1");
    registry.push(&Archive::new("x").on_top(Layer::noise("good", 1000, 40)), "good", "1");
    let trickle = |request: &Request| {
        let is_layer = request.is_blob() && request.nth == 0 && request.header("range").is_none();
        Act::Pass(if is_layer { Way::Slow(200, Duration::from_millis(100)) } else { Way::Whole })
    };
    let long = Proxy::before(&registry, trickle);
    let daemon = Daemon::with_settings("[image]\ndownloads = 2\n");
    let (socket, image) = (daemon.env.socket(), format!("{}/long:1", long.host()));
    let pulling = std::thread::spawn(move || drop(Client::connect(&socket).pull(&image)));
    // The config, and a layer for each place.
    wait_for("the places to be taken", seconds(30), || (long.count(Request::is_blob) >= 3).then_some(()));
    let begin = Instant::now();
    daemon.client().pull(&format!("{}/good:1", registry.host())).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(40) * slow(), "{:?}", begin.elapsed());
    assert!(!pulling.is_finished(), "the slow pull continues");
    drop(daemon);
    pulling.join().unwrap();
}
