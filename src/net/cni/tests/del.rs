//! Detaching and checking, by what is known or by what is not.

use std::fs;
use std::path::PathBuf;

use model::{ErrorClass as _, ErrorKind};
use serde_json::{Value, json};

use super::support::{Ground, RESULT, pod, words};
use crate::attachment::Pod;
use crate::cni::CheckError;

fn result() -> Value {
    serde_json::from_str(RESULT).unwrap()
}

/// A node with one pod in a network of two plugins.
async fn attached() -> Ground {
    let ground = Ground::new();
    ground.good("first");
    ground.good("second");
    ground.list(&[("first", json!({ "mark": 1 })), ("second", json!({}))]);
    ground.cni.add(&pod("p1")).await.unwrap();
    ground.forget_calls();
    ground
}

#[tokio::test]
async fn plugins_are_called_backwards_with_the_result_and_the_pod_is_forgotten() {
    let ground = attached().await;
    ground.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(ground.calls(), ["DEL second", "DEL first"]);
    for plugin in ["first", "second"] {
        assert_eq!(ground.told(plugin, "DEL")["prevResult"], result());
        let (add, del) = (ground.env(plugin, "ADD"), ground.env(plugin, "DEL"));
        assert!(add.iter().all(|(key, value)| key == "CNI_COMMAND" || del[key] == *value), "{add:?} {del:?}");
    }
    assert!(ground.kept().is_empty());
    assert!(ground.cni.attachments().unwrap().is_empty());
}

#[tokio::test]
async fn a_pod_is_detached_by_what_it_was_attached_by() {
    let mut ground = attached().await;
    ground.list(&[("another", json!({ "mark": 2 }))]);
    ground.restart();
    ground.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(ground.calls(), ["DEL second", "DEL first"]);
    assert_eq!(ground.told("first", "DEL")["mark"], 1);
    let mut ground = attached().await;
    fs::remove_dir_all(ground.path("conf")).unwrap();
    ground.restart();
    assert_eq!(ground.cni.attachments().unwrap(), ["p1"]);
    ground.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(ground.calls(), ["DEL second", "DEL first"]);
    ground.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(ground.calls().len(), 2, "there is neither a network nor anything known: nothing to do");
}

#[tokio::test]
async fn a_pod_that_nothing_is_known_of_is_detached_from_the_network_in_use() {
    let ground = attached().await;
    ground.cni.del(&pod("p2")).await.unwrap();
    assert_eq!(ground.calls(), ["DEL second", "DEL first"]);
    assert_eq!(ground.env("first", "DEL")["CNI_CONTAINERID"], "p2");
    assert_eq!(ground.told("first", "DEL").get("prevResult"), None);
    assert_eq!(ground.cni.attachments().unwrap(), ["p1"]);
    // Again and again.
    ground.cni.del(&pod("p2")).await.unwrap();
    ground.cni.del(&pod("p2")).await.unwrap();
}

#[tokio::test]
async fn a_namespace_that_is_gone_is_not_named() {
    let cases: [fn(&Ground) -> Option<PathBuf>; 3] =
        [|_| None, |_| Some("/nowhere/netns".into()), |ground| Some(ground.path("log"))];
    for netns in cases {
        let ground = attached().await;
        ground.cni.del(&Pod { netns: netns(&ground), ..pod("p1") }).await.unwrap();
        assert_eq!(ground.env("first", "DEL")["CNI_NETNS"], "");
        assert_eq!(ground.env("first", "DEL")["CNI_CONTAINERID"], "p1");
    }
}

#[tokio::test]
async fn a_pod_is_remembered_until_all_plugins_have_let_it_go() {
    let ground = attached().await;
    ground.plugin("first", r#"echo '{"code": 11, "msg": "later"}'; exit 1"#);
    let error = ground.cni.del(&pod("p1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(words(&error).contains("first refused DEL: later (code 11)"), "{}", words(&error));
    assert_eq!(ground.cni.attachments().unwrap(), ["p1"]);
    fs::remove_file(ground.path("bin/first")).unwrap();
    let error = ground.cni.del(&pod("p1")).await.unwrap_err();
    assert!(words(&error).contains("first is in none of"), "{}", words(&error));
    assert_eq!(ground.cni.attachments().unwrap(), ["p1"]);
    ground.plugin("first", r#"echo '{"code": 3, "msg": "which container?"}'; exit 1"#);
    ground.cni.del(&pod("p1")).await.expect("it says that there is nothing to do");
    assert!(ground.kept().is_empty());
}

#[tokio::test]
async fn a_pod_whose_plugins_are_gone_is_detached_from_the_network_that_came_after() {
    let ground = attached().await;
    fs::remove_file(ground.path("bin/first")).unwrap();
    ground.cni.del(&pod("p1")).await.unwrap_err();
    ground.good("third");
    ground.list(&[("third", json!({}))]);
    ground.forget_calls();
    ground.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(ground.calls(), ["DEL second", "DEL third"]);
    assert!(ground.kept().is_empty());
    // Plugins that are there and fail are waited for.
    let ground = attached().await;
    ground.plugin("first", "exit 1");
    ground.good("third");
    ground.list(&[("third", json!({}))]);
    ground.cni.del(&pod("p1")).await.unwrap_err();
    assert_eq!(ground.cni.attachments().unwrap(), ["p1"]);
}

#[tokio::test]
async fn old_plugins_are_not_told_the_result_at_del() {
    let ground = Ground::new();
    ground.good("old");
    ground.list_of(&json!({ "cniVersion": "0.3.1" }), &[("old", json!({}))]);
    ground.cni.add(&pod("p1")).await.unwrap();
    ground.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(ground.told("old", "DEL").get("prevResult"), None);
}

#[tokio::test]
async fn a_damaged_record_costs_the_result_and_not_the_detaching() {
    for damage in ["", "{", "{\"format\": 9}", "[]"] {
        let ground = attached().await;
        fs::write(ground.path("cache/p1@eth0@net.json"), damage).unwrap();
        fs::write(ground.path("cache/p1@eth0@net.new"), "what a crash left").unwrap();
        fs::write(ground.path("cache/README"), "somebody else's").unwrap();
        assert_eq!(ground.cni.attachments().unwrap(), ["p1"]);
        ground.cni.del(&pod("p1")).await.unwrap();
        assert_eq!(ground.calls(), ["DEL second", "DEL first"]);
        assert!(ground.cni.attachments().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_pod_whose_attaching_was_cut_off_is_detached_without_a_result() {
    let mut ground = attached().await;
    let path = ground.path("cache/p1@eth0@net.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["result"] = Value::Null;
    fs::write(&path, record.to_string()).unwrap();
    ground.list(&[("another", json!({}))]);
    ground.restart();
    assert!(matches!(ground.cni.check(&pod("p1")).await, Err(CheckError::NotAttached(_))));
    ground.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(ground.calls(), ["DEL second", "DEL first"]);
    assert_eq!(ground.told("first", "DEL").get("prevResult"), None);
}

#[tokio::test]
async fn plugins_are_asked_whether_a_pod_is_still_as_they_left_it() {
    let ground = attached().await;
    ground.cni.check(&pod("p1")).await.unwrap();
    assert_eq!(ground.calls(), ["CHECK first", "CHECK second"]);
    assert_eq!(ground.told("second", "CHECK")["prevResult"], result());
    ground.plugin("first", r#"echo '{"code": 100, "msg": "the cable is out"}'; exit 1"#);
    let error = ground.cni.check(&pod("p1")).await.unwrap_err();
    assert!(words(&error).contains("the cable is out"), "{}", words(&error));
    let gone = ground.cni.check(&Pod { netns: None, ..pod("p1") }).await.unwrap_err();
    assert!(matches!(gone, CheckError::NoNamespace));
    let unknown = ground.cni.check(&pod("p2")).await.unwrap_err();
    assert!(matches!(unknown, CheckError::NotAttached(_)));
}

#[tokio::test]
async fn nobody_is_asked_where_the_network_forbids_it_or_is_too_old() {
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
        let ground = Ground::new();
        ground.plugin("bridge", &format!("if [ $CNI_COMMAND = ADD ]; then echo '{RESULT}'; else exit 1; fi"));
        ground.list_of(&head, &[("bridge", json!({}))]);
        ground.cni.add(&pod("p1")).await.unwrap();
        ground.cni.check(&pod("p1")).await.unwrap();
        assert_eq!(ground.calls(), ["ADD bridge"], "{head}");
    }
}
