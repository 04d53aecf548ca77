use std::time::{Duration, Instant};

use super::fake::{frame, message};
use super::*;
use crate::api::{ConfigureResponse, Empty, RegisterPluginRequest};

fn identity(index: &str, name: &str) -> RegisterPluginRequest {
    let (plugin_name, plugin_idx) = (name.to_owned(), index.to_owned());
    RegisterPluginRequest { plugin_name, plugin_idx, nri_version: "v0.12.2".to_owned() }
}

#[tokio::test]
async fn a_plugin_is_configured_with_names_versions_and_timeouts() {
    let node = Node::start(settings());
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.register("10", "a").await;
    let configured = plugin.configured.clone().unwrap();
    assert_eq!((configured.runtime_name.as_str(), configured.nri_version.as_str()), ("crisp", "v0.12.2"));
    assert_eq!((configured.registration_timeout, configured.request_timeout), (5000, 700));
    assert_eq!((configured.config.as_str(), configured.runtime_version.is_empty()), ("", false));
    plugin.synchronize().await;
    node.active("10-a").await;
}

#[tokio::test]
async fn the_first_bytes_of_the_runtime_are_a_header_frame_and_a_payload_frame() {
    let node = Node::start(settings());
    let mut plugin = Fake::connect(&node.socket).await;
    let stream = plugin.request("RegisterPlugin", &identity("10", "a")).await;
    let response = plugin.response(stream).await;
    assert_eq!((response.status, response.payload), (None, Vec::new()));
    let call = plugin.call().await;
    assert_eq!((call.stream, call.request.service.as_str()), (1, "nri.pkg.api.v1alpha1.Plugin"));
    assert_eq!(call.request.timeout_nano, 5_000_000_000);
}

#[tokio::test]
async fn bad_names_are_refused_with_the_reason() {
    let node = Node::start(settings());
    for (index, name) in [("1", "a"), ("0a", "a"), ("10", "../x"), ("10", ""), ("", "a")] {
        let mut plugin = Fake::connect(&node.socket).await;
        let stream = plugin.request("RegisterPlugin", &identity(index, name)).await;
        let status = plugin.response(stream).await.status.unwrap();
        assert_eq!(status.code, 3, "{index} {name}: {}", status.message);
        plugin.is_closed().await;
    }
    assert!(node.names().is_empty());
}

#[tokio::test]
async fn a_mask_with_unknown_events_or_an_error_of_configure_ends_the_connection() {
    let node = Node::start(settings());
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.events = 0x4000;
    plugin.register("10", "a").await;
    plugin.is_closed().await;

    let mut plugin = Fake::connect(&node.socket).await;
    plugin.request("RegisterPlugin", &identity("10", "b")).await;
    let call = plugin.call().await;
    plugin.refuse(&call, 2, "no").await;
    plugin.is_closed().await;
    assert!(node.names().is_empty());
}

#[tokio::test]
async fn another_first_call_ends_the_connection() {
    let node = Node::start(settings());
    let mut plugin = Fake::connect(&node.socket).await;
    let stream = plugin.request("UpdateContainers", &Empty {}).await;
    assert_eq!(plugin.response(stream).await.status.unwrap().code, 9);
    plugin.is_closed().await;
}

#[tokio::test]
async fn a_second_registration_is_refused_and_the_plugin_stays() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    let stream = plugin.request("RegisterPlugin", &identity("20", "b")).await;
    assert_eq!(plugin.response(stream).await.status.unwrap().code, 9);
    let _turn = node.ping("p");
    plugin.expect("StopPodSandbox").await;
    assert_eq!(node.names(), ["10-a"]);
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    let stream = plugin.request("Nothing", &Empty {}).await;
    assert_eq!(plugin.response(stream).await.status.unwrap().code, 12);
}

#[tokio::test]
async fn a_silent_connection_is_closed_and_holds_up_no_other() {
    let node = Node::start(Settings { registration_timeout: Duration::from_secs(2), ..settings() });
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(Fake::connect(&node.socket).await);
    }
    // One that registers and does not answer Configure.
    let mut half = Fake::connect(&node.socket).await;
    half.request("RegisterPlugin", &identity("10", "half")).await;
    let begun = Instant::now();
    let _plugin = node.plugin("10", "a").await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    for mut silent in silent {
        silent.is_closed().await;
    }
    half.is_closed().await;
    assert_eq!(node.names(), ["10-a"]);
}

#[tokio::test]
async fn a_thousand_connections_without_a_registration_do_not_keep_a_plugin_out() {
    let node = Node::start(settings());
    let mut silent = Vec::new();
    for _ in 0..1000 {
        silent.push(Fake::connect(&node.socket).await);
    }
    let _plugin = node.plugin("10", "a").await;
    silent[0].is_closed().await;
}

#[tokio::test]
async fn a_plugin_that_answers_configure_twice_or_with_another_stream_is_unharmed() {
    let node = Node::start(settings());
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.request("RegisterPlugin", &identity("10", "a")).await;
    let call = plugin.call().await;
    for stream in [0, 2, 99, u32::MAX] {
        plugin.raw(&frame(1, &message(stream, 2, b""))).await;
    }
    plugin.answer(&call, &ConfigureResponse { events: 0 }).await;
    plugin.answer(&call, &ConfigureResponse { events: 0x4000 }).await;
    plugin.synchronize().await;
    node.active("10-a").await;
}

#[tokio::test]
async fn all_plugins_get_shutdown_before_they_are_disconnected() {
    let node = Node::start(settings());
    let (mut one, mut silent) = (node.plugin("10", "a").await, node.plugin("20", "b").await);
    let shut_down = async {
        let begun = Instant::now();
        node.roster.shut_down().await;
        assert!(begun.elapsed() < Duration::from_secs(5));
    };
    let plugin = async {
        let call = one.expect("Shutdown").await;
        one.answer(&call, &Empty {}).await;
        one.is_closed().await;
        silent.expect("Shutdown").await;
        silent.is_closed().await;
    };
    tokio::join!(shut_down, plugin);
    assert!(!node.socket.exists());
}
