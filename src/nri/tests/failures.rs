use std::time::{Duration, Instant};

use model::{ErrorClass as _, ErrorKind};

use super::*;
use crate::api::Empty;
use crate::settings::PluginSettings;

const QUICK: Duration = Duration::from_millis(150);

/// Settings with short calls, in which plugin `a` is required.
fn required() -> Settings {
    Settings { required: ["a".to_owned()].into(), request_timeout: QUICK, ..settings() }
}

#[tokio::test]
async fn a_slow_plugin_that_is_not_required_is_passed_and_synchronized_again_after_its_late_answer() {
    let node = Node::start(Settings { request_timeout: QUICK, ..settings() });
    let mut plugin = Fake::connect(&node.socket).await;
    // Also a validator: it is not called in a request in which it failed.
    plugin.events = 0;
    plugin.register("10", "a").await;
    plugin.synchronize().await;
    node.active("10-a").await;
    let turn = node.roster.begin();
    let (pod, made) = (sandbox("p"), container("c"));
    turn.create_container(&pod, &made).await.unwrap();
    drop(turn);
    let call = plugin.expect("CreateContainer").await;
    plugin.answer(&call, &Empty {}).await;
    let (_, containers, _) = {
        node.host.objects.lock().push(Object::Container((*made).clone()));
        plugin.synchronize().await
    };
    assert_eq!(containers.len(), 1);
    node.host.wait_for("10-a CreateContainer late Some(\"c\")").await;
    let _turn = node.ping("p");
    plugin.expect("StopPodSandbox").await;
}

#[tokio::test]
async fn a_failed_creation_is_undone_after_the_late_answer() {
    let node = Node::start(required());
    let mut plugin = node.plugin("10", "a").await;
    let turn = node.roster.begin_required(&sandbox("p"), Some("c")).await.unwrap();
    let refused = turn.create_container(&sandbox("p"), &container("c")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Deadline);
    assert_eq!(
        model::error_chain::chain(&refused),
        "required NRI plugin 10-a: CreateContainer: no answer after 150 ms"
    );
    let create = plugin.expect("CreateContainer").await;
    plugin.expect_nothing(Duration::from_millis(50)).await;
    plugin.answer(&create, &Empty {}).await;
    for method in ["StopContainer", "RemoveContainer"] {
        let call = plugin.expect(method).await;
        plugin.answer(&call, &Empty {}).await;
    }
}

#[tokio::test]
async fn a_required_plugin_that_is_not_connected_refuses_the_request_after_a_wait() {
    let node = Node::start(required());
    let begun = Instant::now();
    let refused = node.roster.begin_required(&sandbox("p"), None).await.unwrap_err();
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(refused.to_string(), "required NRI plugins not connected after 300 ms: a");
    // Two requests that wait do not wake each other without end; the plugin ends the wait of both.
    node.roster.set_settings(Settings { required_wait: Duration::from_secs(20), ..required() });
    let (one, two) = (sandbox("p"), sandbox("q"));
    let (one, two, _plugin) = tokio::join!(
        node.roster.begin_required(&one, None),
        node.roster.begin_required(&two, None),
        node.plugin("10", "a")
    );
    assert!(one.is_ok() && two.is_ok());
}

#[tokio::test]
async fn a_required_plugin_that_dies_in_the_call_refuses_the_request() {
    let node = Node::start(required());
    let mut plugin = node.plugin("10", "a").await;
    let turn = node.roster.begin_required(&sandbox("p"), None).await.unwrap();
    let pod = sandbox("p");
    let (refused, ()) = tokio::join!(turn.run_pod(&pod), async {
        plugin.expect("RunPodSandbox").await;
        drop(plugin);
    });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    drop(turn);
    // One that is not required is passed.
    node.roster.set_settings(Settings { request_timeout: QUICK, ..settings() });
    let mut plugin = node.plugin("10", "a").await;
    let turn = node.roster.begin_required(&sandbox("p"), None).await.unwrap();
    let (passed, ()) = tokio::join!(turn.run_pod(&pod), async {
        plugin.expect("RunPodSandbox").await;
        drop(plugin);
    });
    passed.unwrap();
}

#[tokio::test]
async fn an_error_of_a_plugin_fails_the_request_and_names_it() {
    let node = Node::start(settings());
    let mut plugin = node.plugin("10", "a").await;
    let turn = node.roster.begin();
    let pod = sandbox("p");
    let (refused, ()) = tokio::join!(turn.run_pod(&pod), async {
        let call = plugin.expect("RunPodSandbox").await;
        plugin.refuse(&call, 2, "not\nhere").await;
    });
    let refused = refused.unwrap_err();
    assert_eq!(model::error_chain::chain(&refused), "NRI plugin 10-a: RunPodSandbox: not here (code 2)");
    assert_eq!(refused.kind(), ErrorKind::Precondition);
    for method in ["StopPodSandbox", "RemovePodSandbox"] {
        let call = plugin.expect(method).await;
        plugin.answer(&call, &Empty {}).await;
    }
}

#[tokio::test]
async fn a_plugin_is_disconnected_after_three_timeouts_in_a_row() {
    let node = Node::start(Settings { request_timeout: QUICK, ..settings() });
    let mut plugin = node.plugin("10", "a").await;
    // Two late answers and one in time do not count together.
    for late in [true, true, false, true] {
        let turn = node.ping("p");
        let call = plugin.expect("StopPodSandbox").await;
        if late {
            tokio::time::sleep(QUICK + QUICK / 3).await;
        }
        plugin.answer(&call, &Empty {}).await;
        drop(turn);
        if late {
            plugin.synchronize().await;
        }
        node.active("10-a").await;
    }
    let begun = Instant::now();
    drop(node.ping("p"));
    plugin.is_closed().await;
    assert!(begun.elapsed() >= QUICK * 2, "{:?}", begun.elapsed());
    node.host.wait_for("10-a closed: closed by crisp: 3 timeouts in a row").await;
}

#[tokio::test]
async fn requests_behind_a_slow_call_pass_after_the_time_of_one_call() {
    let node = Node::start(Settings { request_timeout: Duration::from_secs(1), ..settings() });
    let _plugin = node.plugin("10", "a").await;
    let begun = Instant::now();
    let pods: Vec<_> = (0..10).map(|n| sandbox(&format!("p{n}"))).collect();
    let turns: Vec<_> = pods.iter().map(|_| node.roster.begin()).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for (turn, pod) in turns.into_iter().zip(pods) {
        tasks.spawn(async move { turn.run_pod(&pod).await });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.unwrap().unwrap();
    }
    assert!(begun.elapsed() < Duration::from_millis(2500), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_plugin_with_a_timeout_of_its_own_has_more_time() {
    let own = PluginSettings { request_timeout: Some(Duration::from_secs(20)), ..PluginSettings::default() };
    let plugins = [("slow".to_owned(), own)].into();
    let node = Node::start(Settings { plugins, request_timeout: QUICK, ..settings() });
    let mut plugin = node.plugin("10", "slow").await;
    assert_eq!(plugin.configured.as_ref().unwrap().request_timeout, 20_000);
    let (turn, pod) = (node.roster.begin(), sandbox("p"));
    let (passed, ()) = tokio::join!(turn.run_pod(&pod), async {
        let call = plugin.expect("RunPodSandbox").await;
        assert_eq!(call.request.timeout_nano, 20_000_000_000);
        tokio::time::sleep(QUICK * 3).await;
        plugin.answer(&call, &Empty {}).await;
    });
    passed.unwrap();
    assert!(node.host.observed.lock().contains(&"10-slow RunPodSandbox ok".to_owned()));
}

#[tokio::test]
async fn one_slow_plugin_does_not_delay_the_events_of_another() {
    let node = Node::start(settings());
    let _slow = node.plugin("10", "slow").await;
    let mut plugin = node.plugin("20", "b").await;
    let begun = Instant::now();
    let _turn = node.ping("p");
    plugin.expect("StopPodSandbox").await;
    assert!(begun.elapsed() < settings().request_timeout);
}
