use std::time::Duration;

use super::*;
use crate::api::{CreateContainerResponse, Empty, StopPodSandboxRequest};

const SHORT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn plugins_are_called_by_index_then_name_and_a_new_connection_replaces_the_old() {
    let node = Node::start(settings());
    let _c = node.plugin("20", "a").await;
    let mut old = node.plugin("10", "b").await;
    let _a = node.plugin("10", "a").await;
    assert_eq!(node.names(), ["10-a", "10-b", "20-a"]);
    let mut new = Fake::join(&node.socket, "10", "b").await;
    old.is_closed().await;
    wait("the new one", || node.names() == ["10-a", "10-b", "20-a"]).await;
    let _turn = node.ping("p");
    new.expect("StopPodSandbox").await;
}

#[tokio::test]
async fn the_last_connection_of_a_name_wins_however_long_it_waited() {
    let node = Node::start(Settings { sync_interval: Duration::from_millis(300), ..settings() });
    let mut first = node.plugin("10", "a").await;
    // Both wait for the interval, and for a further one that joins second.
    let mut second = Fake::connect(&node.socket).await;
    second.register("10", "a").await;
    let mut third = Fake::connect(&node.socket).await;
    third.register("10", "a").await;
    first.is_closed().await;
    let (older, newer) = tokio::join!(
        tokio::time::timeout(Duration::from_secs(20), second.until_closed()),
        tokio::time::timeout(Duration::from_secs(2), third.until_closed())
    );
    assert!(older.is_ok() && newer.is_err());
    assert_eq!(node.names(), ["10-a"]);
}

#[tokio::test]
async fn the_snapshot_waits_for_requests_that_began_before_and_not_for_later_ones() {
    let node = Node::start(settings());
    let before = node.roster.begin();
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.register("10", "a").await;
    wait("the session", || !node.names().is_empty()).await;
    tokio::time::sleep(SHORT).await;
    assert_eq!(node.host.snapshots.load(Ordering::SeqCst), 0, "a request without the plugin is under way");
    assert!(before.is_empty());

    let after = node.roster.begin();
    let (pod, made) = (sandbox("p"), container("new"));
    let creation = async { after.create_container(&pod, &made).await };
    let plugin_side = async {
        // The earlier request ends with an object, which is in the snapshot.
        node.host.objects.lock().push(Object::Container((*container("old")).clone()));
        drop(before);
        let (_, containers, _) = plugin.synchronize().await;
        assert_eq!(containers.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), ["old"]);
        let call = plugin.expect("CreateContainer").await;
        plugin.answer(&call, &CreateContainerResponse::default()).await;
    };
    let (created, ()) = tokio::join!(creation, plugin_side);
    created.unwrap();
}

#[tokio::test]
async fn creations_wait_for_a_plugin_that_synchronizes_and_reads_do_not() {
    let node = Node::start(settings());
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.register("10", "a").await;
    let sync = plugin.expect("Synchronize").await;
    let turn = node.roster.begin();
    let (pod, made) = (sandbox("p"), container("c"));
    let creation = turn.create_container(&pod, &made);
    tokio::pin!(creation);
    // Longer than a call may take.
    let early = tokio::time::timeout(settings().request_timeout * 2, &mut creation).await;
    assert!(early.is_err(), "{early:?}");
    assert!(!node.roster.plugins()[0].is_active);
    plugin.answer(&sync, &Empty {}).await;
    let plugin_side = async {
        let call = plugin.expect("CreateContainer").await;
        plugin.answer(&call, &Empty {}).await;
    };
    let (created, ()) = tokio::join!(creation, plugin_side);
    created.unwrap();
}

#[tokio::test]
async fn creations_wait_at_most_the_sync_timeout() {
    let node = Node::start(Settings { sync_timeout: Duration::from_millis(600), ..settings() });
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.register("10", "a").await;
    plugin.expect("Synchronize").await;
    let begun = std::time::Instant::now();
    node.roster.begin().create_container(&sandbox("p"), &container("c")).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn events_of_one_plugin_arrive_in_order_one_at_a_time() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    for number in 0..20 {
        drop(node.ping(&format!("p{number}")));
    }
    for number in 0..20 {
        let call = plugin.expect("StopPodSandbox").await;
        let request: StopPodSandboxRequest = call.message();
        assert_eq!(request.pod.unwrap().id, format!("p{number}"));
        if number == 3 {
            plugin.expect_nothing(SHORT).await;
        }
        plugin.answer(&call, &Empty {}).await;
    }
}

#[tokio::test]
async fn a_plugin_gets_only_the_events_it_subscribes_to() {
    let node = Node::start(settings());
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.events = 0x4;
    plugin.register("10", "a").await;
    plugin.synchronize().await;
    node.active("10-a").await;
    let turn = node.ping("p");
    assert!(!turn.has(Event::StopPodSandbox) && turn.has(Event::RemovePodSandbox));
    turn.run_pod(&sandbox("p")).await.unwrap();
    turn.create_container(&sandbox("p"), &container("c")).await.unwrap();
    turn.notify(Event::RemovePodSandbox, &sandbox("p"), None);
    plugin.expect("RemovePodSandbox").await;
}
