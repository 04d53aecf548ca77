//! `examples/`: the files for crictl in the README.

use cri_api::v1;
use serde_json::Value;

use crate::support::harness::Daemon;

/// Parses an example and checks that it has exactly these keys: crictl silently ignores unknown ones.
fn read(text: &str, keys: &[&str]) -> Value {
    let value: Value = serde_json::from_str(text).unwrap();
    let found: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    assert_eq!(found, keys);
    value
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(text).collect()
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap()
}

#[test]
fn the_examples_run() {
    let pod = read(include_str!("../examples/pod.json"), &["metadata", "hostname", "log_directory", "labels", "linux"]);
    let example = read(
        include_str!("../examples/container.json"),
        &["metadata", "image", "command", "args", "log_path", "linux"],
    );
    let daemon = Daemon::start();
    let client = daemon.client();
    let meta = &pod["metadata"];
    let mut config = daemon.pod_config("example");
    config.metadata = Some(v1::PodSandboxMetadata {
        name: text(&meta["name"]),
        uid: text(&meta["uid"]),
        namespace: text(&meta["namespace"]),
        attempt: 0,
    });
    config.hostname = text(&pod["hostname"]);
    assert!(text(&pod["log_directory"]).starts_with('/'));
    config.linux = Some(v1::LinuxPodSandboxConfig::default());
    let pod = client.run_pod_of(config);

    let resources = &example["linux"]["resources"];
    let mut container = crate::support::client::container("example", &[]);
    container.metadata.as_mut().unwrap().name = text(&example["metadata"]["name"]);
    assert!(text(&example["image"]["image"]).contains("busybox"));
    container.command = texts(&example["command"]);
    container.args = texts(&example["args"]);
    container.log_path = text(&example["log_path"]);
    container.linux = Some(v1::LinuxContainerConfig {
        resources: Some(v1::LinuxContainerResources {
            cpu_period: number(&resources["cpu_period"]),
            cpu_quota: number(&resources["cpu_quota"]),
            cpu_shares: number(&resources["cpu_shares"]),
            memory_limit_in_bytes: number(&resources["memory_limit_in_bytes"]),
            ..Default::default()
        }),
        security_context: None,
    });
    let id = client.run_config(&pod, container);
    client.wait_printed(&id, "hello from crisp");
    client.stop(&id, 10).unwrap();
    assert_eq!(client.status(&id).exit_code, 0);
}
