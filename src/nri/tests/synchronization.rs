use std::time::Duration;

use super::*;
use crate::api::{
    ContainerUpdate, LinuxContainerUpdate, LinuxPids, LinuxResources, SynchronizeRequest, SynchronizeResponse,
};

/// Returns objects of about `bytes` each.
fn objects(count: usize, bytes: usize) -> Vec<Object> {
    let annotations = [("a".to_owned(), "x".repeat(bytes))].into();
    let container = Container { annotations, ..Container::default() };
    let containers = (0..count).map(|n| Object::Container(Container { id: format!("c{n}"), ..container.clone() }));
    let pods = (0..count).map(|n| Object::Pod(PodSandbox { id: format!("p{n}"), ..PodSandbox::default() }));
    pods.chain(containers).collect()
}

async fn sent(objects: Vec<Object>) -> (usize, usize, usize) {
    let node = Node::start(settings());
    *node.host.objects.lock() = objects;
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.register("10", "a").await;
    let (pods, containers, messages) = plugin.synchronize().await;
    node.active("10-a").await;
    for (position, container) in containers.iter().enumerate() {
        assert_eq!(container.id, format!("c{position}"));
    }
    (pods.len(), containers.len(), messages)
}

#[tokio::test]
async fn objects_that_fit_one_message_are_sent_in_one() {
    assert_eq!(sent(Vec::new()).await, (0, 0, 1));
    assert_eq!(sent(objects(3, 1000)).await, (3, 3, 1));
    assert_eq!(sent(objects(3900, 1000)).await, (3900, 3900, 1));
}

#[tokio::test]
async fn more_objects_are_sent_in_messages_of_one_mebibyte() {
    let (pods, containers, messages) = sent(objects(2000, 4000)).await;
    assert_eq!((pods, containers), (2000, 2000));
    assert!((8..=10).contains(&messages), "{messages}");
    // Objects that have more than a message of a set.
    assert_eq!(sent(objects(4, 3 << 20)).await.2, 6);
}

#[tokio::test]
async fn a_plugin_that_does_not_collect_messages_is_disconnected() {
    let node = Node::start(settings());
    *node.host.objects.lock() = objects(20, 500_000);
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.register("10", "a").await;
    let call = plugin.expect("Synchronize").await;
    assert!(call.message::<SynchronizeRequest>().more);
    plugin.answer(&call, &SynchronizeResponse::default()).await;
    plugin.is_closed().await;
    node.host.wait_for("10-a closed: closed by crisp: synchronization failed: the plugin does not collect").await;
    assert!(node.names().is_empty());
}

#[tokio::test]
async fn a_plugin_that_does_not_answer_synchronize_is_disconnected() {
    let node = Node::start(Settings { sync_timeout: Duration::from_millis(100), ..settings() });
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.register("10", "a").await;
    plugin.expect("Synchronize").await;
    plugin.is_closed().await;
    node.host.wait_for("10-a closed: closed by crisp: synchronization failed: no answer after 100 ms").await;
}

#[tokio::test]
async fn an_object_that_fits_no_message_fails_the_synchronization_by_its_id() {
    let node = Node::start(settings());
    *node.host.objects.lock() = objects(1, 5 << 20);
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.register("10", "a").await;
    plugin.is_closed().await;
    node.host.wait_for("10-a closed: closed by crisp: synchronization failed: container c0 has 5242").await;
}

#[tokio::test]
async fn updates_of_the_answer_are_made() {
    let node = Node::start(settings());
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.register("10", "a").await;
    let call = plugin.expect("Synchronize").await;
    let resources = LinuxResources { pids: Some(LinuxPids { limit: 9 }), ..LinuxResources::default() };
    let update = ContainerUpdate {
        container_id: "c".to_owned(),
        linux: Some(Box::new(LinuxContainerUpdate { resources: Some(Box::new(resources)) })),
        ignore_failure: false,
    };
    plugin.answer(&call, &SynchronizeResponse { update: vec![update], more: false }).await;
    wait("the change", || !node.host.changes.lock().is_empty()).await;
    let changes = node.host.changes.lock().clone();
    assert_eq!((changes[0].0.as_str(), changes[0].1[0].container_id.as_str()), ("10-a", "c"));
}

#[tokio::test]
async fn a_plugin_is_synchronized_once_per_interval_also_over_connections() {
    let interval = Duration::from_millis(400);
    let node = Node::start(Settings { sync_interval: interval, ..settings() });
    let begun = std::time::Instant::now();
    for _ in 0..3 {
        drop(node.plugin("10", "a").await);
    }
    assert!(begun.elapsed() >= interval * 2, "{:?}", begun.elapsed());
    let begun = std::time::Instant::now();
    node.plugin("20", "b").await;
    assert!(begun.elapsed() < Duration::from_secs(5));
}
