use std::time::Duration;

use model::{ErrorClass as _, ErrorKind};

use super::*;
use crate::api::{
    ContainerAdjustment, ContainerEviction, ContainerUpdate, CreateContainerRequest, CreateContainerResponse, Empty,
    KeyValue, LinuxContainerUpdate, LinuxPids, LinuxResources, PluginInstance, StateChangeEvent, StopContainerResponse,
    UpdateContainerRequest, UpdateContainerResponse, UpdateContainersRequest, UpdateContainersResponse,
    UpdatePodSandboxRequest, ValidateContainerAdjustmentRequest, ValidateContainerAdjustmentResponse,
};
use prost::Message as _;

fn env(key: &str, value: &str) -> CreateContainerResponse {
    let env = vec![KeyValue { key: key.to_owned(), value: value.to_owned() }];
    CreateContainerResponse { adjust: Some(ContainerAdjustment { env, ..Default::default() }), ..Default::default() }
}

fn pids(container: &str, limit: i64) -> ContainerUpdate {
    let resources = LinuxResources { pids: Some(LinuxPids { limit }), ..LinuxResources::default() };
    ContainerUpdate {
        container_id: container.to_owned(),
        linux: Some(Box::new(LinuxContainerUpdate { resources: Some(Box::new(resources)) })),
        ignore_failure: false,
    }
}

/// Connects a plugin that subscribes to all events.
async fn validator(node: &Node, index: &str, name: &str) -> Fake {
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.events = 0;
    plugin.register(index, name).await;
    plugin.synchronize().await;
    node.active(&format!("{index}-{name}")).await;
    plugin
}

#[tokio::test]
async fn each_plugin_sees_the_changes_of_those_before_it_and_validators_see_all() {
    let node = Node::start(settings());
    let (mut one, mut two) = (validator(&node, "10", "a").await, validator(&node, "20", "b").await);
    let turn = node.roster.begin().with_trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let (pod, made) = (sandbox("p"), container("c"));
    let first = async {
        let call = one.expect("CreateContainer").await;
        let metadata = &call.request.metadata[0];
        assert_eq!((metadata.key.as_str(), metadata.value.len()), ("traceparent", 55));
        one.answer(&call, &env("A", "1")).await;
        let call = one.expect("ValidateContainerAdjustment").await;
        one.answer(&call, &Empty {}).await;
    };
    let second = async {
        let call = two.expect("CreateContainer").await;
        let request: CreateContainerRequest = call.message();
        assert_eq!(request.container.unwrap().env, ["A=1"]);
        two.answer(&call, &env("B", "2")).await;
        let call = two.expect("ValidateContainerAdjustment").await;
        let request: ValidateContainerAdjustmentRequest = call.message();
        assert!(request.container.unwrap().env.is_empty(), "the container without changes");
        assert_eq!(request.adjust.unwrap().env.len(), 2);
        let owners = &request.owners.unwrap().owners["c"].compound[&6].owners;
        assert_eq!((owners["A"].as_str(), owners["B"].as_str()), ("10-a", "20-b"));
        let instance = |name: &str, index: &str| PluginInstance { name: name.to_owned(), index: index.to_owned() };
        assert_eq!(request.plugins, [instance("a", "10"), instance("b", "20")]);
        two.answer(&call, &Empty {}).await;
    };
    let (created, (), ()) = tokio::join!(turn.create_container(&pod, &made), first, second);
    assert_eq!(created.unwrap().adjust.env.len(), 2);
}

#[tokio::test]
async fn a_conflict_names_both_plugins_and_is_undone() {
    let node = Node::start(settings());
    let (mut one, mut two) = (node.plugin("10", "a").await, node.plugin("20", "b").await);
    let turn = node.roster.begin();
    let (pod, made) = (sandbox("p"), container("c"));
    let answers = async {
        let call = one.expect("CreateContainer").await;
        one.answer(&call, &env("A", "1")).await;
        let call = two.expect("CreateContainer").await;
        two.answer(&call, &env("A", "secret")).await;
    };
    let (refused, ()) = tokio::join!(turn.create_container(&pod, &made), answers);
    let refused = refused.unwrap_err();
    assert_eq!(refused.to_string(), "NRI: plugins \"20-b\" and \"10-a\" both tried to set Env A");
    assert_eq!(refused.kind(), ErrorKind::Precondition);
    for plugin in [&mut one, &mut two] {
        for method in ["StopContainer", "RemoveContainer"] {
            let call = plugin.expect(method).await;
            plugin.answer(&call, &Empty {}).await;
        }
    }
}

#[tokio::test]
async fn a_validator_that_rejects_fails_or_is_silent_fails_the_creation() {
    let node = Node::start(Settings { request_timeout: Duration::from_millis(300), ..settings() });
    let mut plugin = Fake::connect(&node.socket).await;
    plugin.events = 0x2000;
    plugin.register("10", "v").await;
    plugin.synchronize().await;
    node.active("10-v").await;
    for case in 0..3 {
        let turn = node.roster.begin();
        let (pod, made) = (sandbox("p"), container("c"));
        let answer = async {
            let call = plugin.expect("ValidateContainerAdjustment").await;
            let reject = ValidateContainerAdjustmentResponse { reject: true, reason: "not\nthis".to_owned() };
            match case {
                0 => plugin.answer(&call, &reject).await,
                1 => plugin.refuse(&call, 2, "broken").await,
                _ => {}
            }
        };
        let (refused, ()) = tokio::join!(turn.create_container(&pod, &made), answer);
        let expected = [
            "NRI plugin 10-v rejected the adjustment of the container: notthis",
            "NRI plugin 10-v: ValidateContainerAdjustment: broken (code 2)",
            "NRI plugin 10-v: ValidateContainerAdjustment: no answer after 300 ms",
        ];
        assert_eq!(model::error_chain::chain(&refused.unwrap_err()), expected[case]);
    }
}

#[tokio::test]
async fn an_update_is_replaced_and_other_containers_are_returned() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    let turn = node.roster.begin();
    let requested = LinuxResources { pids: Some(LinuxPids { limit: 5 }), ..LinuxResources::default() };
    let request = UpdateContainerRequest {
        container: Some((*container("c")).clone()),
        linux_resources: Some(requested.clone()),
        ..UpdateContainerRequest::default()
    };
    let answer = async {
        let call = plugin.expect("UpdateContainer").await;
        let seen: UpdateContainerRequest = call.message();
        assert_eq!(seen.linux_resources, Some(requested));
        let evict = vec![ContainerEviction { container_id: "x".to_owned(), reason: "why".to_owned() }];
        let update = vec![pids("c", 7), pids("other", 9)];
        plugin.answer(&call, &UpdateContainerResponse { update, evict }).await;
    };
    let (resized, ()) = tokio::join!(turn.update_container(request), answer);
    let resized = resized.unwrap();
    assert_eq!(resized.resources.pids.unwrap().limit, 7);
    assert_eq!(resized.adjusted.pids.unwrap().limit, 7);
    assert_eq!((resized.updates.len(), resized.updates[0].container_id.as_str()), (1, "other"));
    assert_eq!((resized.evictions[0].container_id.as_str(), resized.evictions[0].plugin.as_str()), ("x", "10-a"));
}

#[tokio::test]
async fn answers_to_stop_container_are_updates_unless_a_plugin_fails() {
    let node = Node::start(settings());
    let (mut one, mut two) = (node.plugin("10", "a").await, node.plugin("20", "b").await);
    for fails in [false, true] {
        let stopping = node.roster.begin().stop_container(&sandbox("p"), &container("c"));
        let answers = async {
            let call = one.expect("StopContainer").await;
            one.answer(&call, &StopContainerResponse { update: vec![pids("other", 3)] }).await;
            let call = two.expect("StopContainer").await;
            if fails { two.refuse(&call, 2, "no").await } else { two.answer(&call, &Empty {}).await }
        };
        let (updates, ()) = tokio::join!(stopping.updates(), answers);
        assert_eq!(updates.len(), usize::from(!fails));
    }
}

#[tokio::test]
async fn plugins_before_v0_12_get_state_changes() {
    let node = Node::start(settings());
    for (index, version) in [("10", ""), ("20", "v0.12.2")] {
        let mut plugin = Fake::connect(&node.socket).await;
        plugin.version = version;
        plugin.register(index, "old").await;
        plugin.synchronize().await;
        node.active(&format!("{index}-old")).await;
        for round in 0..2 {
            let turn = node.roster.begin();
            let (pod, made) = (sandbox("p"), container("c"));
            let answers = async {
                // One that states a version, but does not know the call.
                if !version.is_empty() && round == 0 {
                    let call = plugin.expect("StartContainer").await;
                    plugin.refuse(&call, 12, "unknown method").await;
                }
                let call = plugin.expect("StateChange").await;
                let change: StateChangeEvent = call.message();
                assert_eq!(change.event(), Event::StartContainer);
                assert_eq!((change.pod.unwrap().id, change.container.unwrap().id), ("p".to_owned(), "c".to_owned()));
                plugin.answer(&call, &Empty {}).await;
            };
            let (started, ()) = tokio::join!(turn.start_container(&pod, &made), answers);
            started.unwrap();
        }
        // Events with an answer have calls of their own in all versions.
        let (pod, made) = (sandbox("p"), container("c"));
        let _stopping = node.roster.begin().stop_container(&pod, &made);
        let call = plugin.expect("StopContainer").await;
        plugin.answer(&call, &Empty {}).await;
        drop(plugin);
        wait("the end", || node.names().is_empty()).await;
    }
}

#[tokio::test]
async fn a_plugin_without_pod_updates_or_validation_is_not_subscribed_to_them() {
    let node = Node::start(settings());
    let mut plugin = validator(&node, "10", "old").await;
    let turn = node.roster.begin();
    let refuse = async {
        let call = plugin.expect("UpdatePodSandbox").await;
        plugin.refuse(&call, 12, "unknown method").await;
    };
    let (updated, ()) = tokio::join!(turn.update_pod(UpdatePodSandboxRequest::default()), refuse);
    updated.unwrap();
    assert!(!turn.has(Event::UpdatePodSandbox) && turn.has(Event::CreateContainer));
    let (pod, made) = (sandbox("p"), container("c"));
    let refuse = async {
        let call = plugin.expect("CreateContainer").await;
        plugin.answer(&call, &Empty {}).await;
        let call = plugin.expect("ValidateContainerAdjustment").await;
        plugin.refuse(&call, 12, "unknown method").await;
    };
    let (created, ()) = tokio::join!(turn.create_container(&pod, &made), refuse);
    created.unwrap();
    assert!(!turn.has(Event::ValidateContainerAdjustment));
    // CreateContainer is there in all versions: 12 is an error of the plugin.
    let refuse = async {
        let call = plugin.expect("CreateContainer").await;
        plugin.refuse(&call, 12, "unknown method").await;
    };
    let (refused, ()) = tokio::join!(turn.create_container(&pod, &made), refuse);
    refused.unwrap_err();
}

#[tokio::test]
async fn a_plugin_may_change_containers_at_any_time_also_during_a_call() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    *node.host.failing.lock() = vec!["b".to_owned(), "c".to_owned()];
    let turn = node.roster.begin();
    let pod = sandbox("p");
    let requests = async {
        let call = plugin.expect("RunPodSandbox").await;
        let ignored = ContainerUpdate { ignore_failure: true, ..pids("c", 1) };
        let evict = vec![ContainerEviction { container_id: "d".to_owned(), reason: "full".to_owned() }];
        let update = vec![pids("a", 1), pids("b", 1), ignored];
        let stream = plugin.request("UpdateContainers", &UpdateContainersRequest { update, evict }).await;
        let response = plugin.response(stream).await;
        assert_eq!(response.status, None);
        let failed = UpdateContainersResponse::decode(&response.payload[..]).unwrap().failed;
        assert_eq!(failed, [pids("b", 1)]);
        plugin.answer(&call, &Empty {}).await;
    };
    let (run, ()) = tokio::join!(turn.run_pod(&pod), requests);
    run.unwrap();
    let changes = node.host.changes.lock().clone();
    assert_eq!((changes.len(), changes[0].1.len(), changes[0].2[0].reason.as_str()), (1, 3, "full"));
}
