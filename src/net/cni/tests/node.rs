//! The verbs for the whole node: STATUS and GC.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::support::{RESULT, TestEnv, pod, slow, words};
use crate::cni::{GcFailure, NotReady, PluginError};

/// A network of version 1.1.0.
fn new_list(test_env: &TestEnv, mark: u32) {
    test_env.list_of(&json!({ "cniVersion": "1.1.0" }), &[("first", json!({ "mark": mark })), ("second", json!({}))]);
}

#[tokio::test]
async fn status_is_cached_for_a_few_seconds() {
    let test_env = TestEnv::new();
    test_env.good("first");
    test_env.good("second");
    new_list(&test_env, 1);
    let ready = test_env.cni.status().await.unwrap();
    assert_eq!(
        (ready.network.as_str(), ready.file, ready.skipped.len()),
        ("net", test_env.path("conf/10-net.conflist"), 0)
    );
    assert_eq!(test_env.deeds(), ["STATUS first", "STATUS second"]);
    let told = json!({ "type": "first", "name": "net", "cniVersion": "1.1.0", "mark": 1 });
    assert_eq!(test_env.stdin_of("first", "STATUS"), told);
    let env: Vec<_> = test_env.env("first", "STATUS").into_keys().collect();
    assert_eq!(env, ["CNI_COMMAND", "CNI_PATH", "PATH"]);
    test_env.plugin("first", r#"echo '{"code": 50, "msg": "no daemon", "details": "connection refused"}'; exit 1"#);
    test_env.cni.status().await.expect("their last word is good for some seconds");
    assert_eq!(test_env.deeds().len(), 2);
    new_list(&test_env, 2);
    let error = test_env.cni.status().await.unwrap_err();
    assert!(
        words(&error).contains("first refused STATUS: no daemon; connection refused (code 50)"),
        "{}",
        words(&error)
    );
    assert!(matches!(&error, NotReady::Plugin { network, .. } if network == "net"));
    test_env.good("first");
    test_env.cni.status().await.expect_err("and so is a bad word");
    tokio::time::sleep(Duration::from_secs(5)).await;
    test_env.cni.status().await.unwrap();
}

#[tokio::test]
async fn old_plugins_are_ready_if_they_are_installed() {
    let test_env = TestEnv::new();
    test_env.list(&[("first", json!({})), ("second", json!({}))]);
    test_env.good("first");
    let error = test_env.cni.status().await.unwrap_err();
    assert!(words(&error).contains("CNI plugin second not found in"), "{}", words(&error));
    test_env.good("second");
    test_env.cni.status().await.expect("at once");
    assert!(test_env.deeds().is_empty());
    fs::remove_file(test_env.path("bin/second")).unwrap();
    test_env.cni.status().await.unwrap_err();
}

#[tokio::test]
async fn a_plugin_that_does_not_return_is_not_ready_after_a_few_seconds() {
    let test_env = TestEnv::with_timeout(slow(Duration::from_secs(2)));
    test_env.plugin("first", "[ $CNI_COMMAND != STATUS ] || sleep 1000");
    test_env.good("second");
    new_list(&test_env, 1);
    let cni = Arc::new(test_env);
    let asks: Vec<_> = (0..5)
        .map(|_| {
            let test_env = Arc::clone(&cni);
            tokio::spawn(async move { test_env.cni.status().await.map(drop).map_err(|error| words(&error)) })
        })
        .collect();
    let before = Instant::now();
    for ask in asks {
        let output = ask.await.unwrap().unwrap_err();
        assert!(output.contains("STATUS not complete"), "{output}");
    }
    assert!(before.elapsed() < slow(Duration::from_secs(8)), "one question answers all");
    assert_eq!(cni.deeds(), ["STATUS first"]);
}

#[tokio::test]
async fn gc_detaches_removed_pods_and_sends_the_others_to_plugins() {
    let mut test_env = TestEnv::new();
    test_env.good("first");
    test_env.good("second");
    new_list(&test_env, 1);
    for id in ["dead", "alive"] {
        test_env.cni.add(&pod(id)).await.unwrap();
    }
    test_env.restart();
    test_env.cni.add(&pod("young")).await.unwrap();
    test_env.forget_calls();
    let done = test_env.cni.gc(&["alive".to_owned(), "elsewhere".to_owned()]).await;
    assert!(done.failed.is_empty(), "{:?}", done.failed);
    assert_eq!((done.detached, done.networks), (vec!["dead".to_owned()], vec!["net".to_owned()]));
    assert_eq!(test_env.deeds(), ["DEL second", "DEL first", "GC first", "GC second"]);
    assert_eq!(test_env.env("first", "DEL")["CNI_CONTAINERID"], "dead");
    let valid = json!([
        { "containerID": "alive", "ifname": "eth0" },
        { "containerID": "elsewhere", "ifname": "eth0" },
        { "containerID": "young", "ifname": "eth0" },
    ]);
    let told = test_env.stdin_of("second", "GC");
    assert_eq!(told["cni.dev/valid-attachments"], valid, "also the one that was attached in the meantime");
    assert_eq!(told["cni.dev/attachments"], valid);
    assert_eq!((&told["name"], &told["cniVersion"]), (&json!("net"), &json!("1.1.0")));
    let env: Vec<_> = test_env.env("first", "GC").into_keys().collect();
    assert_eq!(env, ["CNI_COMMAND", "CNI_PATH", "PATH"]);
    assert_eq!(test_env.cni.attachments().unwrap(), ["alive", "young"]);
}

#[tokio::test]
async fn removed_pods_are_detached_from_networks_without_gc() {
    for head in [json!({ "cniVersion": "1.0.0" }), json!({ "cniVersion": "1.1.0", "disableGC": true })] {
        let mut test_env = TestEnv::new();
        test_env.good("first");
        test_env.list_of(&head, &[("first", json!({}))]);
        test_env.cni.add(&pod("dead")).await.unwrap();
        test_env.restart();
        test_env.forget_calls();
        let done = test_env.cni.gc(&[]).await;
        assert!(done.failed.is_empty() && done.networks.is_empty());
        assert_eq!(test_env.deeds(), ["DEL first"], "{head}");
        assert!(test_env.cached().is_empty());
    }
}

#[tokio::test]
async fn gc_runs_for_a_removed_configuration_with_attached_pods() {
    let mut test_env = TestEnv::new();
    test_env.good("first");
    test_env.good("second");
    new_list(&test_env, 1);
    test_env.cni.add(&pod("alive")).await.unwrap();
    test_env.restart();
    fs::remove_file(test_env.path("conf/10-net.conflist")).unwrap();
    test_env.conf("10-other.conflist", r#"{"cniVersion": "1.1.0", "name": "other", "plugins": [{"type": "first"}]}"#);
    test_env.forget_calls();
    let done = test_env.cni.gc(&["alive".to_owned()]).await;
    assert!(done.failed.is_empty(), "{:?}", done.failed);
    assert_eq!(done.networks, ["net", "other"]);
    assert_eq!(test_env.deeds(), ["GC first", "GC second", "GC first"]);
}

#[tokio::test]
async fn a_failed_gc_is_reported_and_repeated() {
    let mut test_env = TestEnv::new();
    test_env.good("first");
    test_env.good("second");
    new_list(&test_env, 1);
    for id in ["dead-1", "dead-2"] {
        test_env.cni.add(&pod(id)).await.unwrap();
    }
    test_env.restart();
    test_env.plugin("first", "case $CNI_COMMAND$CNI_CONTAINERID in DELdead-1|GC) echo broken >&2; exit 1 ;; esac");
    test_env.forget_calls();
    let done = test_env.cni.gc(&[]).await;
    assert_eq!(done.detached, ["dead-2"]);
    assert!(done.networks.is_empty());
    let [GcFailure::Detach { pod, .. }, GcFailure::Collect { network, .. }] = done.failed.as_slice() else {
        panic!("{:?}", done.failed)
    };
    assert_eq!((pod.as_str(), network.as_str()), ("dead-1", "net"));
    assert!(test_env.deeds().contains(&"GC second".to_owned()), "one plugin does not keep the others from it");
    assert_eq!(test_env.cni.attachments().unwrap(), ["dead-1"]);
    test_env.good("first");
    let done = test_env.cni.gc(&[]).await;
    assert_eq!(done.detached, ["dead-1"]);
    assert!(done.failed.is_empty());
}

#[tokio::test]
async fn gc_detaches_a_pod_with_a_damaged_record_by_its_file_name() {
    let mut test_env = TestEnv::new();
    test_env.good("first");
    test_env.good("second");
    new_list(&test_env, 1);
    test_env.cni.add(&pod("dead")).await.unwrap();
    fs::write(test_env.path("cache/dead@eth0@net.json"), "").unwrap();
    test_env.restart();
    let done = test_env.cni.gc(&[]).await;
    assert_eq!(done.detached, ["dead"]);
    assert!(test_env.cached().is_empty());
    assert_eq!(test_env.env("first", "DEL")["CNI_CONTAINERID"], "dead");
}

/// A plugin that records the begin and end of each call.
fn slow_plugin(test_env: &TestEnv) {
    let script = format!(
        "[ $CNI_COMMAND != VERSION ] || exit 1; echo \"begin $CNI_COMMAND $CNI_CONTAINERID\" >> $log/order; sleep 0.8; \
         echo \"end $CNI_COMMAND $CNI_CONTAINERID\" >> $log/order; [ $CNI_COMMAND != ADD ] || echo '{RESULT}'"
    );
    test_env.plugin("first", &script);
    test_env.list_of(&json!({ "cniVersion": "1.1.0" }), &[("first", json!({}))]);
}

#[tokio::test]
async fn gc_excludes_other_verbs() {
    let test_env = TestEnv::new();
    slow_plugin(&test_env);
    let add = |id: &'static str, after: u64| {
        let test_env = &test_env;
        async move {
            tokio::time::sleep(Duration::from_millis(after)).await;
            test_env.cni.add(&pod(id)).await
        }
    };
    let gc = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        test_env.cni.gc(&[]).await
    };
    let (a, b, done, c) = tokio::join!(add("a", 0), add("b", 0), gc, add("c", 200));
    for attached in [a, b, c] {
        attached.unwrap();
    }
    assert!(done.failed.is_empty() && done.detached.is_empty(), "{done:?}");
    let order = fs::read_to_string(test_env.path("log/order")).unwrap();
    let lines: Vec<_> = order.lines().collect();
    assert!(lines[..2].iter().all(|line| line.starts_with("begin ADD")), "pods do not wait for each other: {order}");
    let at = lines.iter().position(|line| line.starts_with("begin GC")).unwrap();
    assert!(lines[at + 1].starts_with("end GC"), "{order}");
    let begun = lines[..at].iter().filter(|line| line.starts_with("begin")).count();
    assert_eq!(begun * 2, at, "nothing is under way: {order}");
}

#[tokio::test]
async fn verbs_for_one_pod_are_serialized() {
    let test_env = TestEnv::new();
    slow_plugin(&test_env);
    let add = async { test_env.cni.add(&pod("p1")).await.map(drop) };
    let del = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        test_env.cni.del(&pod("p1")).await
    };
    let (added, deleted) = tokio::join!(add, del);
    added.unwrap();
    deleted.unwrap();
    let order = fs::read_to_string(test_env.path("log/order")).unwrap();
    assert_eq!(order, "begin ADD p1\nend ADD p1\nbegin DEL p1\nend DEL p1\n");
    assert!(test_env.cached().is_empty());
}

#[tokio::test]
async fn a_plugin_too_old_for_status_is_detected_by_its_versions() {
    let test_env = TestEnv::new();
    // The output of Debian's plugins for STATUS.
    let odd = r#"echo '{"code": 3, "msg": "missing containerID"}'; exit 1"#;
    let versions = r#"echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}'; exit 0"#;
    test_env.plugin("first", &format!("if [ $CNI_COMMAND = VERSION ]; then {versions}; fi; {odd}"));
    test_env.good("second");
    new_list(&test_env, 1);
    let error = test_env.cni.status().await.unwrap_err();
    let NotReady::Plugin { source, .. } = &error else { panic!("{error}") };
    assert!(matches!(&**source, PluginError::UnsupportedVersion { .. }), "{}", words(&error));
}
