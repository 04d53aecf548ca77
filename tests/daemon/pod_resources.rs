//! KEP-4112: the declared resources of a pod's containers are checked, stored, shown, passed to
//! hooks and compared.

use std::fs;
use std::path::Path;

use cri_api::v1;
use cri_api::v1::container_resource_config::ContainerType;
use serde_json::{Value, json};
use tonic::Code;

use crate::support::client::{Pod, container};
use crate::support::harness::Daemon;

const REFUSE: &str = "[resources]\nmismatch = \"refuse\"\n";
const ANNOTATION: &str = "tests.example/resources";

fn by_annotation() -> Daemon {
    Daemon::with_settings(&format!("{REFUSE}annotation = \"{ANNOTATION}\"\n"))
}

fn resources(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> v1::KubernetesResources {
    let quantities = |list: &[(&str, &str)]| {
        let quantity =
            |(name, text): &(&str, &str)| ((*name).to_owned(), cri_api::Quantity { string: (*text).to_owned() });
        list.iter().map(quantity).collect()
    };
    v1::KubernetesResources { requests: quantities(requests), limits: quantities(limits) }
}

fn null_device() -> v1::Device {
    v1::Device { container_path: "/dev/nothing".into(), host_path: "/dev/null".into(), permissions: "rw".into() }
}

fn usr_mount() -> v1::Mount {
    v1::Mount { container_path: "/machine".into(), host_path: "/usr".into(), readonly: true, ..Default::default() }
}

/// Returns the container `main` as in [`announcement`].
fn main_container() -> v1::ContainerConfig {
    v1::ContainerConfig {
        kubernetes_resources: Some(resources(&[("cpu", "100m")], &[("cpu", "1000m"), ("memory", "67108864")])),
        mounts: vec![usr_mount()],
        devices: vec![null_device()],
        ..container("main", &["true"])
    }
}

/// Returns an init container and `main`, and resources for the pod.
fn announcement() -> v1::PodResourceConfig {
    v1::PodResourceConfig {
        containers: vec![
            v1::ContainerResourceConfig {
                name: "init".into(),
                r#type: ContainerType::InitContainer.into(),
                ..Default::default()
            },
            v1::ContainerResourceConfig {
                name: "main".into(),
                r#type: ContainerType::Container.into(),
                kubernetes_resources: Some(resources(&[("cpu", "0.1")], &[("cpu", "1"), ("memory", "64Mi")])),
                mounts: vec![usr_mount()],
                devices: vec![null_device()],
                cdi_devices: vec![],
            },
        ],
        kubernetes_resources: Some(resources(&[], &[("memory", "1Gi")])),
    }
}

fn announced_pod(daemon: &Daemon, name: &str) -> Pod {
    daemon.run_pod_with(name, |config| config.pod_resources = Some(announcement()))
}

fn info(text: &std::collections::BTreeMap<String, String>) -> Value {
    serde_json::from_str(&text["info"]).unwrap()
}

fn pod_info(daemon: &Daemon, pod: &Pod) -> Value {
    info(&daemon.client().try_pod_status(&pod.id).unwrap().info)
}

fn container_info(daemon: &Daemon, id: &str) -> Value {
    info(&daemon.client().try_status(id).unwrap().info)
}

fn reported(container: &Value, name: &str) -> Value {
    let text = container["runtimeSpec"]["annotations"][name].as_str().unwrap_or_else(|| panic!("{container}"));
    serde_json::from_str(text).unwrap()
}

#[test]
fn declared_resources_are_shown_and_passed_to_hooks_also_after_a_restart() {
    let mut daemon = Daemon::with_settings(REFUSE);
    let pod = announced_pod(&daemon, "pod");
    let id = daemon.client().try_create(&pod, main_container()).unwrap();
    for round in 0..2 {
        let shown = pod_info(&daemon, &pod)["config"]["pod_resources"].clone();
        assert_eq!(shown["containers"][1]["name"], "main", "{round}: {shown}");
        assert_eq!(shown["containers"][1]["resources"]["limits"], json!({"cpu": "1", "memory": "64Mi"}));
        assert_eq!(shown["containers"][1]["devices"][0]["host_path"], "/dev/null");
        assert_eq!(shown["resources"]["limits"], json!({"memory": "1Gi"}));
        let container = container_info(&daemon, &id);
        let stated = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1000m", "memory": "67108864"}});
        assert_eq!(container["config"]["kubernetes_resources"], stated, "as in the container's configuration");
        assert_eq!(reported(&container, "io.crisp.container-resources"), stated);
        let pod_reported = reported(&container, "io.crisp.pod-resources");
        assert_eq!(pod_reported["containers"][0], json!({"name": "init", "type": "INIT_CONTAINER"}));
        assert_eq!(pod_reported["containers"][1]["kubernetesResources"]["limits"]["memory"], "64Mi");
        assert_eq!(pod_reported["kubernetesResources"], json!({"limits": {"memory": "1Gi"}}));
        if round == 0 {
            daemon.restart();
        }
    }
}

#[test]
fn a_clients_annotation_cannot_replace_the_declared_resources() {
    let daemon = Daemon::start();
    let forged = |name: &str| {
        let mut config = container(name, &["true"]);
        for name in ["io.crisp.pod-resources", "io.crisp.container-resources", "tests.example/mine"] {
            config.annotations.insert(name.into(), "{\"forged\": true}".into());
        }
        config
    };
    let (silent, announced) = (daemon.run_pod("silent"), announced_pod(&daemon, "announced"));
    let id = daemon.client().try_create(&silent, forged("main")).unwrap();
    let container = container_info(&daemon, &id);
    let annotations = container["runtimeSpec"]["annotations"].as_object().unwrap();
    assert_eq!(annotations.keys().collect::<Vec<_>>(), ["tests.example/mine"]);
    assert_eq!(daemon.client().status(&id).annotations.len(), 3, "status has the requested annotations");
    let config = v1::ContainerConfig { annotations: forged("main").annotations, ..main_container() };
    let id = daemon.client().try_create(&announced, config).unwrap();
    let container = container_info(&daemon, &id);
    assert_eq!(reported(&container, "io.crisp.pod-resources")["containers"][1]["name"], "main");
    assert_eq!(reported(&container, "io.crisp.container-resources")["requests"], json!({"cpu": "100m"}));
    assert!(daemon.env.read_log().contains("io.crisp.pod-resources"), "{}", daemon.env.read_log());
}

/// Returns a container that differs in every field, and the expected differences.
fn different() -> (v1::ContainerConfig, [&'static str; 6]) {
    let mut config = main_container();
    let limits = &mut config.kubernetes_resources.as_mut().unwrap().limits;
    limits.insert("memory".into(), cri_api::Quantity { string: "65Mi".into() });
    limits.remove("cpu");
    config.mounts[0].readonly = false;
    config.mounts.push(v1::Mount { container_path: "/more".into(), ..usr_mount() });
    config.devices = vec![v1::Device { permissions: "r".into(), ..null_device() }];
    config.devices.push(v1::Device { container_path: "/dev/more".into(), ..null_device() });
    let said = [
        "limit of memory: 65Mi, but 64Mi was declared",
        "limit of cpu: missing, but 1 was declared",
        "mount \"/machine\", readonly: false, but true was declared",
        "mount \"/more\": \"/usr\", but none was declared",
        "device \"/dev/nothing\", permissions: \"r\", but \"rw\" was declared",
        "device \"/dev/more\": \"/dev/null\", but none was declared",
    ];
    (config, said)
}

#[test]
fn a_container_that_differs_is_created_with_a_warning() {
    let daemon = Daemon::start();
    let pod = announced_pod(&daemon, "pod");
    let as_announced = daemon.client().try_create(&pod, main_container()).unwrap();
    daemon.client().remove(&as_announced).unwrap();
    assert!(!daemon.env.read_log().contains("was declared"), "{}", daemon.env.read_log());
    let (config, said) = different();
    let id = daemon.client().run_config(&pod, config);
    assert_eq!(daemon.client().wait_exited(&id).exit_code, 0);
    daemon.client().create(&pod, "debugger", &["true"]);
    let log = daemon.env.read_log().replace('\\', "");
    let unannounced = "name: \"debugger\", but no such container was declared";
    for text in said.iter().chain([&unannounced]) {
        assert!(log.contains(text), "{text}: {log}");
    }
    let shown = &container_info(&daemon, &id)["config"]["kubernetes_resources"]["limits"];
    assert_eq!(*shown, json!({"memory": "65Mi"}), "the values in its own configuration");
}

#[test]
fn a_container_that_differs_is_refused_if_configured() {
    let daemon = Daemon::with_settings(REFUSE);
    let pod = announced_pod(&daemon, "pod");
    let before = daemon.snapshot();
    let (config, said) = different();
    let refusal = daemon.client().try_create(&pod, config).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    for text in said {
        assert!(refusal.message().contains(text), "{text}: {refusal:?}");
    }
    let refusal = daemon.client().try_create(&pod, container("debugger", &["true"])).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    assert!(refusal.message().contains("\"debugger\", but no such container was declared"), "{refusal:?}");
    daemon.wait_until_like(&before);
    let id = daemon.client().run_config(&pod, main_container());
    assert_eq!(daemon.client().wait_exited(&id).exit_code, 0);
    let init = daemon.client().run(&pod, "init", &["true"]);
    assert_eq!(daemon.client().wait_exited(&init).exit_code, 0);
    let silent = daemon.run_pod("silent");
    daemon.client().create(&silent, "anything", &["true"]);
}

#[test]
fn the_repeated_configuration_of_a_pod_does_not_change_the_declared_resources() {
    let daemon = Daemon::with_settings(REFUSE);
    let mut pod = announced_pod(&daemon, "pod");
    let (config, _) = different();
    let repeated = &mut pod.config.pod_resources.as_mut().unwrap().containers[1];
    repeated.kubernetes_resources = config.kubernetes_resources.clone();
    (repeated.mounts, repeated.devices) = (config.mounts.clone(), config.devices.clone());
    let refusal = daemon.client().try_create(&pod, config).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    pod.config.pod_resources = None;
    let id = daemon.client().try_create(&pod, main_container()).unwrap();
    let shown = pod_info(&daemon, &pod)["config"]["pod_resources"]["containers"][1]["resources"].clone();
    assert_eq!(shown["limits"], json!({"cpu": "1", "memory": "64Mi"}));
    let reported = reported(&container_info(&daemon, &id), "io.crisp.pod-resources");
    assert_eq!(reported["containers"][1]["kubernetesResources"]["limits"]["memory"], "64Mi");
}

#[test]
fn invalid_declared_resources_are_refused_by_field() {
    let daemon = Daemon::start();
    let path = "config.pod_resources.containers[1].kubernetes_resources.limits[\"memory\"]";
    for text in ["", "1 Gi", "1.2.3", "0x10", "NaN", "-1", "1e-10", "16Ei"] {
        let mut config = daemon.pod_config("pod");
        let mut announced = announcement();
        announced.containers[1].kubernetes_resources = Some(resources(&[], &[("memory", text)]));
        config.pod_resources = Some(announced);
        let refusal = daemon.client().try_run_pod(config).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{text:?}: {refusal:?}");
        assert!(refusal.message().starts_with(path), "{text:?}: {refusal:?}");
    }
    let pod = daemon.run_pod("pod");
    let bad = [
        ("config.kubernetes_resources.requests[\"cpu\"]", resources(&[("cpu", "2")], &[("cpu", "1999m")])),
        ("config.kubernetes_resources.limits[\"c pu\"]", resources(&[], &[("c pu", "1")])),
    ];
    for (path, stated) in bad {
        let config = v1::ContainerConfig { kubernetes_resources: Some(stated), ..container("main", &["true"]) };
        let refusal = daemon.client().try_create(&pod, config).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
        assert!(refusal.message().starts_with(path), "{refusal:?}");
    }
    assert!(daemon.client().containers().is_empty());
}

const BY_ANNOTATION: &str = r#"{"containers": [{"name": "main", "type": "CONTAINER",
    "kubernetesResources": {"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}}}]}"#;

fn annotated_pod(daemon: &Daemon, name: &str, text: &str) -> v1::PodSandboxConfig {
    let mut config = daemon.pod_config(name);
    config.annotations.insert(ANNOTATION.into(), text.into());
    config
}

#[test]
fn an_annotation_declares_resources_for_clients_without_the_field() {
    let mut daemon = by_annotation();
    let pod = daemon.client().run_pod_of(annotated_pod(&daemon, "pod", BY_ANNOTATION));
    daemon.restart();
    let id = daemon.client().run(&pod, "main", &["true"]);
    assert_eq!(daemon.client().wait_exited(&id).exit_code, 0);
    let stated = json!({"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}});
    let container = container_info(&daemon, &id);
    assert_eq!(container["config"]["kubernetes_resources"], stated);
    assert_eq!(reported(&container, "io.crisp.container-resources"), stated);
    assert_eq!(reported(&container, "io.crisp.pod-resources")["containers"][0]["kubernetesResources"], stated);
    let refusal = daemon.client().try_create(&pod, container_with_mount()).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    let mut both = annotated_pod(&daemon, "both", BY_ANNOTATION);
    both.pod_resources = Some(announcement());
    let both = daemon.client().run_pod_of(both);
    let shown = pod_info(&daemon, &both)["config"]["pod_resources"]["containers"].clone();
    assert_eq!(shown.as_array().unwrap().len(), 2, "the request goes before the annotation");
}

fn container_with_mount() -> v1::ContainerConfig {
    let mut config = container("main", &["true"]);
    config.metadata.as_mut().unwrap().attempt = 1;
    v1::ContainerConfig { mounts: vec![usr_mount()], ..config }
}

#[test]
fn an_unreadable_annotation_is_refused_by_its_name() {
    let daemon = by_annotation();
    for (text, problem) in [
        ("", "EOF"),
        ("{\"container\": []}", "unknown field `container`"),
        (&BY_ANNOTATION.replace("64Mi", "64 Mi"), ".containers[0].kubernetes_resources.limits[\"memory\"]: "),
    ] {
        let refusal = daemon.client().try_run_pod(annotated_pod(&daemon, "pod", text)).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
        assert!(refusal.message().starts_with(&format!("config.annotations[{ANNOTATION:?}]")), "{refusal:?}");
        assert!(refusal.message().contains(problem), "{refusal:?}");
    }
    assert!(daemon.client().pods().is_empty());
}

#[test]
fn no_annotation_is_used_unless_configured() {
    let daemon = Daemon::with_settings(REFUSE);
    let pod = daemon.client().run_pod_of(annotated_pod(&daemon, "pod", "no JSON at all"));
    assert_eq!(pod_info(&daemon, &pod)["config"]["pod_resources"], Value::Null);
    let id = daemon.client().create(&pod, "main", &["true"]);
    assert_eq!(container_info(&daemon, &id)["config"]["kubernetes_resources"], Value::Null);
}

/// Removes a field from the specification in a record.
fn without(file: &Path, field: &str) {
    let mut record: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let removed = record["spec"].as_object_mut().unwrap().remove(field);
    assert!(removed.is_some(), "{record}");
    fs::write(file, record.to_string()).unwrap();
}

#[test]
fn records_without_declared_resources_are_still_read() {
    let mut daemon = Daemon::start();
    let pod = announced_pod(&daemon, "pod");
    let id = daemon.client().run_idle(&pod, "main");
    daemon.kill9();
    let dir = daemon.env.state().join("pods").join(&pod.id);
    without(&dir.join("pod.json"), "pod_resources");
    without(&dir.join("containers").join(&id).join("container.json"), "kubernetes_resources");
    daemon.revive();
    assert_eq!(daemon.client().pod_status(&pod.id).state(), v1::PodSandboxState::SandboxReady);
    assert_eq!(daemon.client().status(&id).state(), v1::ContainerState::ContainerRunning);
    assert_eq!(pod_info(&daemon, &pod)["config"]["pod_resources"], Value::Null);
    daemon.client().create(&pod, "another", &["true"]);
}
