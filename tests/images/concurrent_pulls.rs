//! Concurrent pulls: shared content is downloaded once, and a client that disconnects does not
//! affect others.

use std::path::Path;
use std::time::Duration;

use cri_api::v1;
use tonic::{Code, Status};

use crate::support::client::{Client, container};
use crate::support::harness::{Daemon, seconds, slow, wait_for};
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::Registry;
pub(crate) use crate::support::registry_proxy::{Act, Proxy, Request, Way};

/// Pulls, and disconnects when `enough` returns true.
fn pull_until(socket: &Path, image: &str, enough: impl Fn() -> bool) -> Result<String, Status> {
    let client = Client::connect(socket);
    let image = Some(v1::ImageSpec { image: image.into(), ..Default::default() });
    let request = v1::PullImageRequest { image, ..Default::default() };
    let pulled = client.image_call(|mut c| async move {
        let mut pull = std::pin::pin!(c.pull_image(request));
        loop {
            if let Ok(answer) = tokio::time::timeout(Duration::from_millis(10), &mut pull).await {
                return answer;
            }
            if enough() {
                return Err(Status::cancelled("disconnected"));
            }
        }
    });
    // Dropping the client closes the connection.
    pulled.map(|answer| answer.image_ref)
}

fn slowly(request: &Request) -> Act {
    Act::Pass(if request.is_blob() { Way::Slow(20_000, Duration::from_millis(50) * slow()) } else { Way::Whole })
}

#[test]
fn twenty_images_with_shared_layers_download_each_layer_once() {
    let registry = Registry::start();
    let shared = |number: u64| Layer::noise(&format!("shared-{number}"), 100_000, number);
    let own = |number: usize| Layer::new(|tar| tar.file("own", 0o644, format!("{number}\n").as_bytes()));
    for number in 0..20 {
        // Each has the first layers of a sequence of four, and one layer that is only in this
        // image.
        let mut archive = Archive::new("x");
        for below in 0..=(number % 4) {
            archive = archive.on_top(shared(u64::try_from(below).unwrap()));
        }
        registry.push(&archive.on_top(own(number)), "box", &number.to_string());
    }
    let proxy = Proxy::before(&registry, |_| Act::pass());
    let daemon = Daemon::start();
    let (socket, host) = (daemon.env.socket(), proxy.host());
    let name = |number: usize| format!("{host}/box:{number}");
    std::thread::scope(|threads| {
        for number in 0..20 {
            let (socket, name) = (&socket, &name);
            threads.spawn(move || Client::connect(socket).pull(&name(number)).unwrap());
        }
    });
    for number in 0..4 {
        let blob = shared(number).blob();
        assert_eq!(proxy.count(|request| request.is_blob() && request.is_for(&blob)), 1, "shared layer {number}");
    }
    // Also a config and a layer for each image; busybox was in the store, but not from this
    // registry.
    assert_eq!(proxy.count(Request::is_blob), 4 + 1 + 20 + 20);
    daemon.check_store(1 + 4 + 20);
    let pod = daemon.run_pod("pod");
    for number in 0..20 {
        let mut config = container(&format!("of-{number}"), &["sh", "-c", "cat /own; ls / | grep -c shared"]);
        config.image.as_mut().unwrap().image = name(number);
        let ended = daemon.client().finish_config(&pod, config);
        assert_eq!(ended.stdout, format!("{number}\n{}\n", number % 4 + 1));
    }
    daemon.client().remove_everything();
    for number in 0..20 {
        daemon.client().remove_image(&name(number)).unwrap();
    }
    daemon.check_nothing_left();
}

#[test]
fn an_image_pulled_twenty_times_at_once_is_downloaded_once() {
    let registry = Registry::start();
    let archive = Archive::bare(Layer::noise("noise", 200_000, 11));
    registry.push(&archive, "box", "1");
    let proxy = Proxy::before(&registry, slowly);
    let daemon = Daemon::start();
    let (socket, image) = (daemon.env.socket(), format!("{}/box:1", proxy.host()));
    std::thread::scope(|threads| {
        for _ in 0..20 {
            threads.spawn(|| Client::connect(&socket).pull(&image).unwrap());
        }
    });
    assert_eq!(proxy.count(Request::is_blob), 2, "a config and a layer");
    daemon.check_store(2);
}

#[test]
fn a_client_that_disconnects_leaves_nothing_and_does_not_affect_others() {
    let registry = Registry::start();
    let layer = Layer::noise("noise", 200_000, 12);
    registry.push(&Archive::bare(layer.clone()), "box", "1");
    registry.push(&Archive::bare(layer.clone()).with("Env", serde_json::json!(["OTHER=1"])), "box", "other");
    let blob = layer.blob();
    let mine = blob.clone();
    // The first request does not get the layer.
    let proxy = Proxy::before(&registry, move |request| {
        Act::Pass(if request.is_for(&mine) && request.nth < 2 { Way::Stall(50_000) } else { Way::Whole })
    });
    let daemon = Daemon::start();
    let socket = daemon.env.socket();
    let (image, other) = (format!("{}/box:1", proxy.host()), format!("{}/box:other", proxy.host()));
    let asked = || proxy.count(|request| request.is_blob() && request.is_for(&blob));
    assert_eq!(pull_until(&socket, &image, || asked() == 1).unwrap_err().code(), Code::Cancelled);
    daemon.check_nothing_left();
    let joined = || proxy.count(|request| request.is_manifest() && request.path.contains("/other")) > 0;
    std::thread::scope(|threads| {
        // Disconnects when the other pulls have joined.
        let first = threads.spawn(|| pull_until(&socket, &image, joined));
        wait_for("the layer to be requested", seconds(10), || (asked() == 2).then_some(()));
        // The same image, and another one with the same layer.
        let waiting = [&image, &other].map(|image| threads.spawn(|| Client::connect(&socket).pull(image)));
        assert_eq!(first.join().unwrap().unwrap_err().code(), Code::Cancelled);
        waiting.into_iter().for_each(|pull| drop(pull.join().unwrap().unwrap()));
    });
    daemon.check_store(2);
}

#[test]
fn removing_an_image_during_a_pull_breaks_neither() {
    let registry = Registry::start();
    let (low, high) = (Layer::noise("low", 1000, 13), Layer::noise("high", 100_000, 14));
    registry.push(&Archive::new("x").on_top(low.clone()), "low", "1");
    registry.push(&Archive::new("x").on_top(low).on_top(high.clone()), "high", "1");
    let proxy = Proxy::before(&registry, slowly);
    let daemon = Daemon::start();
    let client = daemon.client();
    let (low, higher) = (format!("{}/low:1", proxy.host()), format!("{}/high:1", proxy.host()));
    client.pull(&low).unwrap();
    let socket = daemon.env.socket();
    std::thread::scope(|threads| {
        let pull = threads.spawn(|| Client::connect(&socket).pull(&higher));
        let blob = high.blob();
        wait_for("the layer to be requested", seconds(10), || {
            (proxy.count(|request| request.is_blob() && request.is_for(&blob)) > 0).then_some(())
        });
        // An image whose layers the pull needs, and the one that is being pulled.
        client.remove_image(&low).unwrap();
        client.remove_image(&higher).unwrap();
        pull.join().unwrap().unwrap();
    });
    assert_eq!(client.image(&low), None);
    assert_eq!(daemon.print_in(&higher, "wc -c < /low; wc -c < /high"), "1000\n100000\n");
    daemon.check_store(3);
    client.remove_image(&higher).unwrap();
    daemon.check_nothing_left();
}
