//! Bytes that no correct plugin sends. Each costs bounded time and memory, and leaves other plugins
//! unharmed.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;

use super::fake::{frame, message};
use super::*;
use crate::api::{ContainerAdjustment, CreateContainerResponse, Empty, Mount, UpdateContainersRequest};

/// Sends bytes after the registration, and checks that the plugin is disconnected with this reason
/// while another one is not.
async fn is_refused(bytes: &[u8], reason: &str) {
    let node = Node::start(settings());
    let mut other = node.plugin("20", "other").await;
    let mut plugin = node.plugin("10", "a").await;
    plugin.raw(bytes).await;
    plugin.is_closed().await;
    node.host.wait_for(&format!("10-a closed: {reason}")).await;
    drop(node.ping("p"));
    other.expect("StopPodSandbox").await;
    assert_eq!(node.names(), ["20-other"]);
}

#[tokio::test]
async fn frames_and_messages_above_the_limit_are_refused() {
    let header = |length: u32| [1u32.to_be_bytes(), length.to_be_bytes()].concat();
    is_refused(&header(u32::MAX), "protocol violation: frame of 4294967295 bytes").await;
    is_refused(&header((4 << 20) + 11), "protocol violation: frame of 4194315 bytes").await;
    let long = [&u32::MAX.to_be_bytes()[..], &[0, 0, 0, 1, 2, 0]].concat();
    is_refused(&frame(1, &long), "protocol violation: ttrpc message of 4294967295 bytes").await;
}

#[tokio::test]
async fn types_on_the_wrong_connection_are_refused() {
    for (connection, kind, name) in [(1, 1, "Plugin"), (1, 3, "Plugin"), (2, 2, "Runtime"), (2, 3, "Runtime")] {
        let reason = format!("protocol violation: ttrpc message of type {kind} on the {name} connection");
        is_refused(&frame(connection, &message(1, kind, b"")), &reason).await;
    }
}

#[tokio::test]
async fn unknown_connections_and_answers_to_unknown_streams_are_dropped() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    for connection in [0, 3, u32::MAX] {
        plugin.raw(&frame(connection, &[0xff; 1000])).await;
    }
    for stream in [0, 1, 2, 7, u32::MAX] {
        plugin.raw(&frame(1, &message(stream, 2, b"\xff\xff"))).await;
    }
    drop(node.ping("p"));
    plugin.expect("StopPodSandbox").await;
}

#[tokio::test]
async fn even_and_repeated_stream_ids_are_refused_and_the_plugin_stays() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    for stream in [0, 2, 1, 4] {
        plugin.raw(&frame(2, &message(stream, 1, b""))).await;
        let response = plugin.response(stream).await;
        assert_eq!(response.status.unwrap().code, 3);
    }
    let stream = plugin.request("UpdateContainers", &UpdateContainersRequest::default()).await;
    assert_eq!(plugin.response(stream).await.status, None);
}

#[tokio::test]
async fn malformed_requests_are_refused_with_an_error() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    // Truncated, not UTF-8, and groups nested without end.
    for (position, payload) in
        [&b"\x0a\x7f"[..], b"\x0a\x02\xff\xff", &b"\x9b\x06".repeat(100_000)].into_iter().enumerate()
    {
        let stream = u32::try_from(position).unwrap() * 2 + 101;
        plugin.raw(&frame(2, &message(stream, 1, payload))).await;
        assert_eq!(plugin.response(stream).await.status.unwrap().code, 3);
    }
}

#[tokio::test]
async fn a_malformed_answer_closes_the_connection_and_the_request_continues() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    let turn = node.roster.begin();
    let (pod, made) = (sandbox("p"), container("c"));
    let (created, ()) = tokio::join!(turn.create_container(&pod, &made), async {
        let call = plugin.expect("CreateContainer").await;
        // A response whose payload is cut.
        plugin.raw(&frame(1, &message(call.stream, 2, b"\x12\x02\x0a\x7f"))).await;
        plugin.is_closed().await;
    });
    created.unwrap();
    node.host.wait_for("10-a closed: closed by crisp: answer cannot be decoded").await;
}

#[tokio::test]
async fn answers_with_too_many_elements_are_refused_before_they_take_memory() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    let mounts = vec![Mount::default(); 100_000];
    let many = CreateContainerResponse {
        adjust: Some(ContainerAdjustment { mounts, ..ContainerAdjustment::default() }),
        ..CreateContainerResponse::default()
    };
    let turn = node.roster.begin();
    let (pod, made) = (sandbox("p"), container("c"));
    let (created, ()) = tokio::join!(turn.create_container(&pod, &made), async {
        let call = plugin.expect("CreateContainer").await;
        plugin.answer(&call, &many).await;
        plugin.is_closed().await;
    });
    created.unwrap();
    drop(turn);
    node.host.wait_for("10-a closed: closed by crisp: answer with more than 65536 fields").await;

    let mut plugin = node.plugin("10", "a").await;
    let updates = vec![crate::api::ContainerUpdate::default(); 1_000_000];
    let stream =
        plugin.request("UpdateContainers", &UpdateContainersRequest { update: updates, evict: Vec::new() }).await;
    assert_eq!(plugin.response(stream).await.status.unwrap().code, 3);
}

#[tokio::test]
async fn an_answer_with_four_mebibytes_of_annotations_is_merged_in_time() {
    let node = Node::start(Settings { request_timeout: Duration::from_secs(20), ..settings() });
    let mut plugin = node.plugin("10", "a").await;
    let annotations = (0..30).map(|n| (format!("example.com/{n}"), "x".repeat(130_000))).collect();
    let large = CreateContainerResponse {
        adjust: Some(ContainerAdjustment { annotations, ..ContainerAdjustment::default() }),
        ..CreateContainerResponse::default()
    };
    let begun = Instant::now();
    let turn = node.roster.begin();
    let (pod, made) = (sandbox("p"), container("c"));
    let (created, ()) = tokio::join!(turn.create_container(&pod, &made), async {
        let call = plugin.expect("CreateContainer").await;
        plugin.answer(&call, &large).await;
    });
    assert_eq!(created.unwrap().adjust.annotations.len(), 30);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_plugin_that_floods_requests_and_reads_no_response_is_disconnected() {
    let node = Node::start(settings());
    let mut other = node.plugin("20", "other").await;
    let plugin = node.plugin("10", "a").await;
    let mut socket = plugin.socket;
    let flood = async {
        let mut stream = 101u32;
        let mut sent = 0;
        loop {
            let many: Vec<u8> = (0..1000).flat_map(|n| frame(2, &message(stream + 2 * n, 1, b""))).collect();
            stream += 2000;
            sent += 1000;
            assert!(sent < 1_000_000, "a million requests without a response");
            if socket.write_all(&many).await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), flood).await.unwrap();
    node.host.wait_for("10-a closed: the plugin does not read").await;
    drop(node.ping("p"));
    other.expect("StopPodSandbox").await;
}

#[tokio::test]
async fn requests_beyond_four_at_the_same_time_are_refused() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    let many: Vec<u8> = (0..50).flat_map(|n| frame(2, &message(101 + 2 * n, 1, b""))).collect();
    plugin.raw(&many).await;
    let mut codes = Vec::new();
    while codes.len() < 50 {
        let received = plugin.receive().await.unwrap();
        let response: crate::wire::Response = prost::Message::decode(&received.payload[..]).unwrap();
        codes.push(response.status.unwrap().code);
    }
    // All are answered, as unknown methods or as too many.
    assert!(codes.iter().all(|code| [12, 8].contains(code)), "{codes:?}");
}

#[tokio::test]
async fn a_plugin_that_never_reads_is_disconnected_by_its_timeouts() {
    let node = Node::start(Settings { request_timeout: Duration::from_millis(100), ..settings() });
    let plugin = node.plugin("10", "a").await;
    let annotations = [("a".to_owned(), "x".repeat(1 << 20))].into();
    let pod = Arc::new(PodSandbox { annotations, ..PodSandbox::default() });
    let begun = Instant::now();
    node.roster.begin().run_pod(&pod).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    node.host.wait_for("10-a closed: closed by crisp: 3 timeouts in a row").await;
    drop(plugin);
}

#[tokio::test]
async fn plugins_that_connect_and_die_in_a_loop_leave_nothing_behind() {
    let node = Node::start(settings());
    let mut other = node.plugin("20", "other").await;
    for _ in 0..200 {
        let mut plugin = Fake::connect(&node.socket).await;
        plugin.register("10", "a").await;
    }
    wait("the end of all", || node.names() == ["20-other"]).await;
    drop(node.ping("p"));
    other.expect("StopPodSandbox").await;
}

#[tokio::test]
async fn a_queue_that_is_full_drops_events_and_the_plugin_is_synchronized_again() {
    let node = Node::start(Settings { request_timeout: Duration::from_secs(20), ..settings() });
    let mut plugin = node.plugin("10", "a").await;
    let turn = node.roster.begin();
    let pod = sandbox("p");
    for _ in 0..1100 {
        turn.notify(Event::StopPodSandbox, &pod, None);
    }
    drop(turn);
    let mut calls = 0;
    loop {
        let call = plugin.call().await;
        plugin.answer(&call, &Empty {}).await;
        if call.method() == "Synchronize" {
            break;
        }
        calls += 1;
    }
    assert!((1024..=1025).contains(&calls), "{calls}");
}
