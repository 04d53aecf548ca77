//! DEL and CHECK with a record, without one, and with a damaged one.

use std::fs;
use std::path::PathBuf;

use model::{ErrorClass as _, ErrorKind};
use serde_json::{Value, json};

use super::support::{RESULT, TestEnv, pod, words};
use crate::attachment::Pod;
use crate::cni::CheckError;

fn result() -> Value {
    serde_json::from_str(RESULT).unwrap()
}

/// A node with one pod in a network of two plugins.
async fn attached() -> TestEnv {
    let test_env = TestEnv::new();
    test_env.good("first");
    test_env.good("second");
    test_env.list(&[("first", json!({ "mark": 1 })), ("second", json!({}))]);
    test_env.cni.add(&pod("p1")).await.unwrap();
    test_env.forget_calls();
    test_env
}

#[tokio::test]
async fn del_calls_plugins_in_reverse_order_and_removes_the_record() {
    let test_env = attached().await;
    test_env.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(test_env.calls(), ["DEL second", "DEL first"]);
    for plugin in ["first", "second"] {
        assert_eq!(test_env.stdin_of(plugin, "DEL")["prevResult"], result());
        let (add, del) = (test_env.env(plugin, "ADD"), test_env.env(plugin, "DEL"));
        assert!(add.iter().all(|(key, value)| key == "CNI_COMMAND" || del[key] == *value), "{add:?} {del:?}");
    }
    assert!(test_env.cached().is_empty());
    assert!(test_env.cni.attachments().unwrap().is_empty());
}

#[tokio::test]
async fn a_pod_is_detached_with_the_configuration_of_its_record() {
    let mut test_env = attached().await;
    test_env.list(&[("another", json!({ "mark": 2 }))]);
    test_env.restart();
    test_env.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(test_env.calls(), ["DEL second", "DEL first"]);
    assert_eq!(test_env.stdin_of("first", "DEL")["mark"], 1);
    let mut test_env = attached().await;
    fs::remove_dir_all(test_env.path("conf")).unwrap();
    test_env.restart();
    assert_eq!(test_env.cni.attachments().unwrap(), ["p1"]);
    test_env.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(test_env.calls(), ["DEL second", "DEL first"]);
    test_env.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(test_env.calls().len(), 2, "without a network and a record nothing is called");
}

#[tokio::test]
async fn a_pod_without_a_record_is_detached_from_the_configured_network() {
    let test_env = attached().await;
    test_env.cni.del(&pod("p2")).await.unwrap();
    assert_eq!(test_env.calls(), ["DEL second", "DEL first"]);
    assert_eq!(test_env.env("first", "DEL")["CNI_CONTAINERID"], "p2");
    assert_eq!(test_env.stdin_of("first", "DEL").get("prevResult"), None);
    assert_eq!(test_env.cni.attachments().unwrap(), ["p1"]);
    // Repeatedly.
    test_env.cni.del(&pod("p2")).await.unwrap();
    test_env.cni.del(&pod("p2")).await.unwrap();
}

#[tokio::test]
async fn del_does_not_name_a_removed_namespace() {
    let cases: [fn(&TestEnv) -> Option<PathBuf>; 3] =
        [|_| None, |_| Some("/nowhere/netns".into()), |test_env| Some(test_env.path("log"))];
    for netns in cases {
        let test_env = attached().await;
        test_env.cni.del(&Pod { netns: netns(&test_env), ..pod("p1") }).await.unwrap();
        assert_eq!(test_env.env("first", "DEL")["CNI_NETNS"], "");
        assert_eq!(test_env.env("first", "DEL")["CNI_CONTAINERID"], "p1");
    }
}

#[tokio::test]
async fn the_record_stays_until_all_plugins_have_succeeded() {
    let test_env = attached().await;
    test_env.plugin("first", r#"echo '{"code": 11, "msg": "later"}'; exit 1"#);
    let error = test_env.cni.del(&pod("p1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(words(&error).contains("first refused DEL: later (code 11)"), "{}", words(&error));
    assert_eq!(test_env.cni.attachments().unwrap(), ["p1"]);
    fs::remove_file(test_env.path("bin/first")).unwrap();
    let error = test_env.cni.del(&pod("p1")).await.unwrap_err();
    assert!(words(&error).contains("CNI plugin first not found in"), "{}", words(&error));
    assert_eq!(test_env.cni.attachments().unwrap(), ["p1"]);
    test_env.plugin("first", r#"echo '{"code": 3, "msg": "which container?"}'; exit 1"#);
    test_env.cni.del(&pod("p1")).await.expect("nothing to do is a success");
    assert!(test_env.cached().is_empty());
}

#[tokio::test]
async fn a_pod_with_uninstalled_plugins_is_detached_from_the_configured_network() {
    let test_env = attached().await;
    fs::remove_file(test_env.path("bin/first")).unwrap();
    test_env.cni.del(&pod("p1")).await.unwrap_err();
    test_env.good("third");
    test_env.list(&[("third", json!({}))]);
    test_env.forget_calls();
    test_env.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(test_env.calls(), ["DEL second", "DEL third"]);
    assert!(test_env.cached().is_empty());
    // A plugin that exists and fails is not skipped.
    let test_env = attached().await;
    test_env.plugin("first", "exit 1");
    test_env.good("third");
    test_env.list(&[("third", json!({}))]);
    test_env.cni.del(&pod("p1")).await.unwrap_err();
    assert_eq!(test_env.cni.attachments().unwrap(), ["p1"]);
}

#[tokio::test]
async fn old_plugins_receive_no_result_at_del() {
    let test_env = TestEnv::new();
    test_env.good("old");
    test_env.list_of(&json!({ "cniVersion": "0.3.1" }), &[("old", json!({}))]);
    test_env.cni.add(&pod("p1")).await.unwrap();
    test_env.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(test_env.stdin_of("old", "DEL").get("prevResult"), None);
}

#[tokio::test]
async fn a_pod_with_a_damaged_record_is_detached_without_a_result() {
    for damage in ["", "{", "{\"format\": 9}", "[]"] {
        let test_env = attached().await;
        fs::write(test_env.path("cache/p1@eth0@net.json"), damage).unwrap();
        fs::write(test_env.path("cache/p1@eth0@net.new"), "left by a crash").unwrap();
        fs::write(test_env.path("cache/README"), "a foreign file").unwrap();
        assert_eq!(test_env.cni.attachments().unwrap(), ["p1"]);
        test_env.cni.del(&pod("p1")).await.unwrap();
        assert_eq!(test_env.calls(), ["DEL second", "DEL first"]);
        assert!(test_env.cni.attachments().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_pod_with_an_interrupted_add_is_detached_without_a_result() {
    let mut test_env = attached().await;
    let path = test_env.path("cache/p1@eth0@net.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["result"] = Value::Null;
    fs::write(&path, record.to_string()).unwrap();
    test_env.list(&[("another", json!({}))]);
    test_env.restart();
    assert!(matches!(test_env.cni.check(&pod("p1")).await, Err(CheckError::NotAttached(_))));
    test_env.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(test_env.calls(), ["DEL second", "DEL first"]);
    assert_eq!(test_env.stdin_of("first", "DEL").get("prevResult"), None);
}

#[tokio::test]
async fn check_is_called_with_the_result_of_add() {
    let test_env = attached().await;
    test_env.cni.check(&pod("p1")).await.unwrap();
    assert_eq!(test_env.calls(), ["CHECK first", "CHECK second"]);
    assert_eq!(test_env.stdin_of("second", "CHECK")["prevResult"], result());
    test_env.plugin("first", r#"echo '{"code": 100, "msg": "the cable is out"}'; exit 1"#);
    let error = test_env.cni.check(&pod("p1")).await.unwrap_err();
    assert!(words(&error).contains("the cable is out"), "{}", words(&error));
    let gone = test_env.cni.check(&Pod { netns: None, ..pod("p1") }).await.unwrap_err();
    assert!(matches!(gone, CheckError::NoNamespace));
    let unknown = test_env.cni.check(&pod("p2")).await.unwrap_err();
    assert!(matches!(unknown, CheckError::NotAttached(_)));
}

#[tokio::test]
async fn check_calls_no_plugin_if_it_is_disabled_or_the_version_is_too_old() {
    let head = |more: Value| {
        let mut head = json!({ "cniVersion": "1.0.0" });
        head.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        head
    };
    for head in [
        head(json!({ "disableCheck": true })),
        head(json!({ "disableCheck": "true" })),
        head(json!({ "cniVersion": "0.3.1" })),
    ] {
        let test_env = TestEnv::new();
        test_env.plugin("bridge", &format!("if [ $CNI_COMMAND = ADD ]; then echo '{RESULT}'; else exit 1; fi"));
        test_env.list_of(&head, &[("bridge", json!({}))]);
        test_env.cni.add(&pod("p1")).await.unwrap();
        test_env.cni.check(&pod("p1")).await.unwrap();
        assert_eq!(test_env.calls(), ["ADD bridge"], "{head}");
    }
}
