//! The input of plugins at ADD, and the use of their results.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use model::{Bandwidth, BitRate, Dns, ErrorClass as _, ErrorKind, PortMapping, Protocol};
use serde_json::{Value, json};

use super::support::{RESULT, TestEnv, pod, words};
use crate::attachment::Pod;
use crate::cni::{AddError, PluginError};

/// A pod that requests every capability.
fn demanding(id: &str) -> Pod {
    let port = |protocol, host_ip: &str| PortMapping {
        protocol,
        container_port: 80,
        host_port: 8080,
        host_ip: host_ip.to_owned(),
    };
    Pod {
        ports: vec![
            port(Protocol::Tcp, ""),
            port(Protocol::Sctp, "127.0.0.1"),
            PortMapping { host_port: 0, ..port(Protocol::Udp, "") },
        ],
        bandwidth: Bandwidth { ingress: Some(BitRate(1000)), egress: None },
        dns: Some(Dns { servers: vec!["10.0.0.10".into()], searches: vec!["a.b".into()], options: vec!["x".into()] }),
        annotations: BTreeMap::from([("key".to_owned(), "value".to_owned())]),
        cgroup: "/kubepods/pod1".to_owned(),
        ..pod(id)
    }
}

#[tokio::test]
async fn attaching_a_pod_writes_a_private_record() {
    let test_env = TestEnv::new();
    test_env.good("bridge");
    test_env.list(&[("bridge", json!({}))]);
    let attached = test_env.cni.add(&pod("p1")).await.unwrap();
    let ips: Vec<_> = attached.ips.iter().map(ToString::to_string).collect();
    assert_eq!(ips, ["10.1.0.5", "fd00::5"]);
    assert_eq!(test_env.cached(), ["p1@eth0@net.json"]);
    assert_eq!(test_env.cni.attachments().unwrap(), ["p1"]);
    let mode = |path: &str| fs::metadata(test_env.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("cache"), mode("cache/p1@eth0@net.json")), (0o700, 0o600));
    let again = test_env.cni.add(&pod("p1")).await.unwrap_err();
    assert!(matches!(&again, AddError::AlreadyAttached { .. }), "{again}");
    assert_eq!(again.kind(), ErrorKind::Precondition);
    assert_eq!(test_env.calls(), ["ADD bridge"]);
}

#[tokio::test]
async fn each_plugin_receives_the_result_of_those_before_it() {
    let test_env = TestEnv::new();
    test_env.good("first");
    // Omits the version, and adds an address.
    let second = r#"case $CNI_COMMAND in ADD) echo '{"ips": [{"address": "10.9.9.9/24"}], "mark": 2}' ;; esac"#;
    test_env.plugin("second", second);
    test_env.good("third");
    let conf = json!({ "own": { "deep": [1, 2] }, "capabilities": { "mac": true }, "cni.dev/x": 1, "prevResult": 7 });
    test_env.list(&[("first", conf), ("second", json!({})), ("third", json!({}))]);
    test_env.cni.add(&pod("p1")).await.unwrap();
    let wanted = json!({ "type": "first", "name": "net", "cniVersion": "1.0.0", "own": { "deep": [1, 2] } });
    assert_eq!(test_env.stdin_of("first", "ADD"), wanted, "only its own configuration");
    let result: Value = serde_json::from_str(RESULT).unwrap();
    assert_eq!(test_env.stdin_of("second", "ADD")["prevResult"], result);
    let second = json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.9.9.9/24" }], "mark": 2 });
    assert_eq!(test_env.stdin_of("third", "ADD")["prevResult"], second, "with the requested version");
    assert_eq!(test_env.calls(), ["ADD first", "ADD second", "ADD third"]);
}

#[tokio::test]
async fn plugins_receive_the_capabilities_that_they_declare() {
    let test_env = TestEnv::new();
    for name in ["all", "some", "none"] {
        test_env.good(name);
    }
    let all = ["portMappings", "bandwidth", "dns", "io.kubernetes.cri.pod-annotations", "cgroupPath", "mac"];
    let all: serde_json::Map<_, _> = all.iter().map(|one| ((*one).to_owned(), json!(true))).collect();
    test_env.list(&[
        ("all", json!({ "capabilities": all })),
        ("some", json!({ "capabilities": { "portMappings": false, "bandwidth": true } })),
        ("none", json!({})),
    ]);
    test_env.cni.add(&demanding("p1")).await.unwrap();
    let wanted = json!({
        "portMappings": [
            { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
            { "hostPort": 8080, "containerPort": 80, "protocol": "sctp", "hostIP": "127.0.0.1" },
        ],
        "bandwidth": { "ingressRate": 1000, "ingressBurst": 4_294_967_295_u32 },
        "dns": { "servers": ["10.0.0.10"], "searches": ["a.b"], "options": ["x"] },
        "io.kubernetes.cri.pod-annotations": { "key": "value" },
        "cgroupPath": "/kubepods/pod1",
    });
    assert_eq!(test_env.stdin_of("all", "ADD")["runtimeConfig"], wanted);
    assert_eq!(test_env.stdin_of("some", "ADD")["runtimeConfig"], json!({ "bandwidth": wanted["bandwidth"] }));
    assert_eq!(test_env.stdin_of("none", "ADD").get("runtimeConfig"), None);
    test_env.cni.add(&pod("p2")).await.unwrap();
    let little = json!({ "io.kubernetes.cri.pod-annotations": {} });
    assert_eq!(test_env.stdin_of("all", "ADD")["runtimeConfig"], little, "a pod without requests");
    // The same at DEL, from the record.
    test_env.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(test_env.stdin_of("all", "DEL")["runtimeConfig"], wanted);
}

#[tokio::test]
async fn plugins_receive_only_the_environment_of_cni() {
    let test_env = TestEnv::new();
    test_env.good("bridge");
    test_env.list(&[("bridge", json!({}))]);
    test_env.cni.add(&pod("p1")).await.unwrap();
    let path = |name: &str| test_env.path(name).display().to_string();
    let args =
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=p1;K8S_POD_UID=c0ffee";
    let wanted = [
        ("CNI_ARGS", args.to_owned()),
        ("CNI_COMMAND", "ADD".to_owned()),
        ("CNI_CONTAINERID", "p1".to_owned()),
        ("CNI_IFNAME", "eth0".to_owned()),
        ("CNI_NETNS", "/proc/self/ns/net".to_owned()),
        ("CNI_PATH", format!("{}:{}", path("bin-first"), path("bin"))),
        ("PATH", std::env::var("PATH").unwrap()),
    ];
    let wanted: BTreeMap<_, _> = wanted.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    assert_eq!(test_env.env("bridge", "ADD"), wanted);
}

#[tokio::test]
async fn names_cannot_add_further_arguments() {
    let test_env = TestEnv::new();
    test_env.good("bridge");
    test_env.list(&[("bridge", json!({}))]);
    let refused = [
        Pod { name: "x;K8S_POD_NAMESPACE=kube-system".to_owned(), ..pod("p1") },
        Pod { namespace: "a=b".to_owned(), ..pod("p1") },
        Pod { uid: "a\nb".to_owned(), ..pod("p1") },
        Pod { uid: "a\0b".to_owned(), ..pod("p1") },
        pod("../../etc/passwd"),
        pod("-x"),
        pod("a;b=c"),
        pod(""),
    ];
    for bad in refused {
        let error = test_env.cni.add(&bad).await.unwrap_err();
        assert!(matches!(error, AddError::Pod(_)), "{error}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        test_env.cni.del(&bad).await.unwrap();
    }
    assert!(test_env.calls().is_empty() && test_env.cached().is_empty());
    let odd = Pod { name: "Ünï code / \"quoted\" $(x)".to_owned(), uid: String::new(), ..pod("p1") };
    test_env.cni.add(&odd).await.unwrap();
    assert!(test_env.env("bridge", "ADD")["CNI_ARGS"].contains(&format!(";K8S_POD_NAME={};", odd.name)));
}

#[tokio::test]
async fn invalid_input_is_refused_before_any_plugin_runs() {
    let test_env = TestEnv::new();
    test_env.good("bridge");
    test_env.list(&[("bridge", json!({})), ("missing", json!({}))]);
    let error = test_env.cni.add(&pod("p1")).await.unwrap_err();
    assert!(matches!(&error, AddError::Plugin { source: PluginError::Missing { .. }, .. }), "{error}");
    assert!(words(&error).contains("CNI plugin missing not found in"), "{}", words(&error));
    assert_eq!(error.kind(), ErrorKind::Precondition);
    test_env.list(&[("bridge", json!({}))]);
    for netns in [None, Some("/nowhere".into()), Some(test_env.path("bin"))] {
        let error = test_env.cni.add(&Pod { netns, ..pod("p1") }).await.unwrap_err();
        assert!(matches!(&error, AddError::NoNamespace { .. }), "{error}");
    }
    assert!(test_env.calls().is_empty() && test_env.cached().is_empty());
}

#[tokio::test]
async fn the_highest_version_of_all_plugins_is_used() {
    let test_env = TestEnv::new();
    test_env.good("new");
    test_env.speaking("old", r#"["0.3.1", "0.4.0"]"#);
    test_env.list_of(&json!({ "cniVersions": ["0.3.1", "0.4.0", "1.0.0"] }), &[("new", json!({})), ("old", json!({}))]);
    test_env.cni.add(&pod("p1")).await.unwrap();
    assert_eq!(test_env.calls(), ["VERSION new", "VERSION old", "ADD new", "ADD old"]);
    assert_eq!(test_env.stdin_of("new", "ADD")["cniVersion"], "0.4.0");
    let told = test_env.stdin_of("old", "ADD");
    assert_eq!(told["cniVersion"], "0.4.0");
    assert_eq!(told["prevResult"]["cniVersion"], "0.4.0", "the result is converted to the version");
    assert_eq!(
        (&told["prevResult"]["ips"][0]["version"], &told["prevResult"]["ips"][1]["version"]),
        (&json!("4"), &json!("6"))
    );
    test_env.forget_calls();
    test_env.cni.add(&pod("p2")).await.unwrap();
    assert_eq!(test_env.calls(), ["ADD new", "ADD old"], "called once");
    test_env.good("old");
    test_env.forget_calls();
    test_env.cni.add(&pod("p3")).await.unwrap();
    assert_eq!(test_env.calls(), ["VERSION old", "ADD new", "ADD old"], "and again when it is another program");
    assert_eq!(test_env.stdin_of("old", "ADD")["cniVersion"], "1.0.0");
    test_env.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(test_env.stdin_of("old", "DEL")["cniVersion"], "0.4.0", "a pod keeps the version it was attached in");
}

#[tokio::test]
async fn a_plugin_without_a_common_version_is_named_in_the_error() {
    let test_env = TestEnv::new();
    test_env.good("new");
    test_env.speaking("old", r#"["0.1.0", "0.2.0"]"#);
    test_env.list_of(&json!({ "cniVersions": ["0.4.0", "1.0.0"] }), &[("new", json!({})), ("old", json!({}))]);
    let error = test_env.cni.add(&pod("p1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition);
    let output = words(&error);
    assert!(output.contains("old supports [\"0.1.0\", \"0.2.0\"]") && output.contains("0.4.0, 1.0.0"), "{output}");
    assert!(test_env.cached().is_empty());
    // A plugin that does not support VERSION does not restrict the choice.
    test_env
        .plugin("old", r#"case $CNI_COMMAND in ADD) echo '{"ips": [{"address": "10.0.0.2/8"}]}' ;; *) exit 1 ;; esac"#);
    test_env.cni.add(&pod("p1")).await.unwrap();
    assert_eq!(test_env.stdin_of("old", "ADD")["cniVersion"], "1.0.0");
}
