//! UpdatePodSandboxResources: applied to a cgroup of crisp, only recorded for a cgroup of the
//! client.

use super::*;
use crate::support::harness::times;

fn sized(
    daemon: &Daemon,
    name: &str,
    resources: v1::LinuxContainerResources,
    overhead: v1::LinuxContainerResources,
) -> Pod {
    daemon.run_pod_with(name, |config| {
        let linux = config.linux.as_mut().unwrap();
        linux.resources = Some(resources);
        linux.overhead = Some(overhead);
    })
}

/// The kubelet's value for "no limit", as it reads it from a cgroup.
fn no_limit() -> v1::LinuxContainerResources {
    let memory = if kernel_state::is_v2() { -1 } else { 9_223_372_036_854_771_712 };
    v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: -1,
        cpu_shares: 2,
        memory_limit_in_bytes: memory,
        ..Default::default()
    }
}

#[test]
fn a_pod_cgroup_of_crisp_includes_the_overhead_and_follows_resizes() {
    let mut daemon = Daemon::start();
    let pod = sized(&daemon, "pod", limits(1000, 128), limits(250, 32));
    let cgroup = format!("pod{}", pod.id);
    let [cpu, _, memory] = kernel_limits(&daemon, &cgroup);
    assert_eq!((cpu.as_str(), memory), ("125000 100000", (160 * MIB).to_string()));
    let id = daemon.client().run_limited(&pod, "main", limits(1000, 128));

    daemon.client().update_pod(&pod.id, limits(2000, 256), limits(250, 32)).unwrap();
    let [cpu, _, memory] = kernel_limits(&daemon, &cgroup);
    assert_eq!((cpu.as_str(), memory), ("225000 100000", (288 * MIB).to_string()));
    // Now the container's limit fits below that of the pod.
    daemon.client().update(&id, limits(2000, 256)).unwrap();
    assert_limits(&daemon, &id, 2000, 256);

    daemon.restart();
    let info = daemon.client().pod_info(&pod.id)["resources"].clone();
    assert_eq!(info["asked"]["cpu_quota"], 200_000, "{info}");
    assert_eq!(info["overhead"]["memory"], 32 * MIB, "{info}");
    assert_eq!(info["actual"]["memory"], 288 * MIB, "{info}");
    assert_eq!(info["drift"], serde_json::json!([]));
    assert_eq!(info["containers"][&id]["actual"]["memory"], 256 * MIB, "{info}");
    let file = if kernel_state::is_v2() { "memory.max" } else { "memory.limit_in_bytes" };
    assert_eq!(info["applied"][file], (288 * MIB).to_string(), "{info}");

    daemon.client().update(&id, limits(500, 64)).unwrap();
    daemon.client().update_pod(&pod.id, no_limit(), v1::LinuxContainerResources::default()).unwrap();
    let [cpu, _, memory] = kernel_limits(&daemon, &cgroup);
    assert!(cpu.starts_with("max") || cpu.starts_with("-1"), "{cpu}");
    assert!(memory == "max" || memory.len() > 18, "{memory}");
}

/// The kubelet creates a container while its pod is being raised: v1 would refuse a quota above the
/// pod's, and the kubelet raises the pod only if the container runs.
#[test]
fn a_container_created_before_its_pod_is_raised_runs_and_is_raised_later() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = sized(&daemon, "pod", limits(82, 128), v1::LinuxContainerResources::default());
    let id = client.run_limited(&pod, "main", limits(88, 64));
    let most = if kernel_state::is_v2() { 8800 } else { 8200 };
    let shown = client.status(&id).resources.unwrap().linux.unwrap();
    assert_eq!((shown.cpu_quota, shown.cpu_period), (most, 100_000), "the value in the kernel");
    client.update_pod(&pod.id, limits(88, 128), v1::LinuxContainerResources::default()).unwrap();
    client.update(&id, limits(88, 64)).unwrap();
    assert_limits(&daemon, &id, 88, 64);
}

#[test]
fn a_size_of_a_pod_of_the_client_is_recorded_and_not_applied() {
    let mut daemon = Daemon::start();
    let parent = daemon.env.pod_cgroup("pod-of-the-kubelet");
    let config = |config: &mut v1::PodSandboxConfig| config.linux.as_mut().unwrap().cgroup_parent = parent.clone();
    let pod = daemon.run_pod_with("pod", config);
    let before = kernel_limits(&daemon, "pod-of-the-kubelet");
    // The kubelet's calls: before its own write, again with the old values after that failed, and
    // once more.
    for _ in 0..times(50, 5) {
        for resources in [limits(1000, 128), no_limit(), limits(2000, 256)] {
            daemon.client().update_pod(&pod.id, resources, v1::LinuxContainerResources::default()).unwrap();
        }
    }
    assert_eq!(kernel_limits(&daemon, "pod-of-the-kubelet"), before);
    daemon.restart();
    let info = daemon.client().pod_info(&pod.id)["resources"].clone();
    assert_eq!(info["asked"]["cpu_quota"], 200_000, "{info}");
    assert_eq!(info["applied"], serde_json::json!({}), "{info}");
    daemon.client().remove_pod(&pod.id).unwrap();
    daemon.env.remove_pod_cgroup(&parent);
}

#[test]
fn bad_sizes_of_a_pod_are_refused_by_field() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = sized(&daemon, "pod", limits(1000, 128), v1::LinuxContainerResources::default());
    let bad = v1::LinuxContainerResources { cpu_period: 5, ..Default::default() };
    for (resources, overhead, field) in
        [(bad.clone(), limits(10, 1), "resources.cpu_period"), (limits(1000, 128), bad, "overhead.cpu_period")]
    {
        let refusal = client.update_pod(&pod.id, resources, overhead).unwrap_err();
        assert_eq!(refusal.code(), tonic::Code::InvalidArgument, "{refusal:?}");
        assert!(refusal.message().starts_with(field), "{refusal:?}");
    }
    let refusal = client.update_pod("nobody", limits(1000, 128), limits(10, 1)).unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::NotFound);
    let [cpu, _, memory] = kernel_limits(&daemon, &format!("pod{}", pod.id));
    assert_eq!((cpu.as_str(), memory), ("100000 100000", (128 * MIB).to_string()));
}
