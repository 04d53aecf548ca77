//! Declared pod resources (KEP-4112): changes of requests and limits as the pod spec has them.

use serde_json::json;

use super::*;

fn resources(cpu: &str, memory: &str) -> v1::KubernetesResources {
    let amounts = [("cpu", cpu), ("memory", memory)];
    let amounts = amounts.map(|(name, text)| (name.to_owned(), cri_api::Quantity { string: text.to_owned() }));
    v1::KubernetesResources { requests: amounts.clone().into(), limits: amounts.into() }
}

fn announced(cpu: &str, memory: &str) -> v1::PodResourceConfig {
    let main = v1::ContainerResourceConfig {
        name: "main".to_owned(),
        r#type: v1::container_resource_config::ContainerType::Container.into(),
        kubernetes_resources: Some(resources(cpu, memory)),
        ..Default::default()
    };
    v1::PodResourceConfig { containers: vec![main], kubernetes_resources: None }
}

/// The annotation of the container that hooks get.
fn annotation(client: &Client, id: &str, annotation: &str) -> serde_json::Value {
    let spec = &client.container_info(id)["runtimeSpec"];
    serde_json::from_str(spec["annotations"][annotation].as_str().unwrap()).unwrap()
}

#[test]
fn a_pod_cgroup_of_crisp_has_the_declared_limits_and_follows_resizes() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod_with("pod", |config| config.pod_resources = Some(announced("500m", "64Mi")));
    let cgroup = format!("pod{}", pod.id);
    let [cpu, _, memory] = kernel_limits(&daemon, &cgroup);
    assert_eq!((cpu.as_str(), memory), ("50000 100000", (64 * MIB).to_string()));
    let mut config = limited("main", limits(500, 64));
    config.kubernetes_resources = Some(resources("500m", "64Mi"));
    let id = daemon.client().run_config(&pod, config);

    let request = v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id.clone(),
        pod_resources: Some(announced("1500m", "96Mi")),
        ..Default::default()
    };
    daemon.client().call(|mut c| async move { c.update_pod_sandbox_resources(request).await }).unwrap();
    let [cpu, _, memory] = kernel_limits(&daemon, &cgroup);
    assert_eq!((cpu.as_str(), memory), ("150000 100000", (96 * MIB).to_string()));
    let request = v1::UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(limits(1500, 96)),
        kubernetes_resources: Some(resources("1.5", "96Mi")),
        ..Default::default()
    };
    daemon.client().call(|mut c| async move { c.update_container_resources(request).await }).unwrap();

    for _ in 0..2 {
        assert_limits(&daemon, &id, 1500, 96);
        let client = daemon.client();
        let limits = &client.container_info(&id)["config"]["kubernetes_resources"]["limits"];
        assert_eq!(*limits, json!({"cpu": "1.5", "memory": "96Mi"}), "verbatim");
        let own = annotation(client, &id, "io.crisp.container-resources");
        assert_eq!(own["limits"]["cpu"], "1.5", "{own}");
        let whole = annotation(client, &id, "io.crisp.pod-resources");
        assert_eq!(whole["containers"][0]["kubernetesResources"]["limits"]["cpu"], "1500m", "{whole}");
        daemon.restart();
    }
}

#[test]
fn bad_quantities_of_a_change_are_refused_by_field_and_change_nothing() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(500, 64));
    let request = v1::UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(limits(700, 128)),
        kubernetes_resources: Some(resources("1 Gi", "1")),
        ..Default::default()
    };
    let refusal = client.call(|mut c| async move { c.update_container_resources(request).await }).unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::InvalidArgument);
    assert!(refusal.message().starts_with("kubernetes_resources.requests[\"cpu\"]"), "{refusal:?}");
    assert_limits(&daemon, &id, 500, 64);
    let request = v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id.clone(),
        pod_resources: Some(announced("-1", "1")),
        ..Default::default()
    };
    let refusal = client.call(|mut c| async move { c.update_pod_sandbox_resources(request).await }).unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::InvalidArgument);
    assert!(refusal.message().starts_with("pod_resources.containers[0].kubernetes_resources"), "{refusal:?}");
}
