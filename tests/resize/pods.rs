//! UpdatePodSandboxResources: recorded, never applied to a cgroup that the caller created.

use std::collections::BTreeMap;
use std::fs;

use cri_api::v1;
use tonic::Code;

use super::container::Container;
use super::kubelet::no_limit;
use super::resources::{PERIOD, Shape};
use super::target::{Target, is_unimplemented, update_pod};
use crate::support::client::Pod;
use crate::support::kernel_state;

/// The kubelet's write to a cgroup of a pod: path and text.
fn own_files(pod: &Pod) -> BTreeMap<String, String> {
    let cgroup = &pod.config.linux.as_ref().unwrap().cgroup_parent;
    let files: &[&str] = match kernel_state::is_v2() {
        true => &["cpu.max", "cpu.weight", "memory.max", "memory.min", "memory.low", "memory.high", "cpuset.cpus"],
        false => &["cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "memory.limit_in_bytes", "cpuset.cpus"],
    };
    let path = |file: &&str| kernel_state::cgroup_dir(file.split('.').next().unwrap(), cgroup).join(file);
    files.iter().map(path).map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())).collect()
}

fn resources(quota: i64, shares: i64, memory: i64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: PERIOD,
        cpu_quota: quota,
        cpu_shares: shares,
        memory_limit_in_bytes: memory,
        ..Default::default()
    }
}

#[test]
fn a_pod_cgroup_of_the_caller_is_not_changed() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut container = Container::run(&target, &pod, "main", &Shape::guaranteed(500, 128));
    let before = own_files(&pod);
    for asked in [
        resources(100_000, 512, 256 << 20),
        resources(-1, 512, no_limit()),
        resources(-1, 2, -1),
        resources(50_000, 1024, 9_223_372_036_854_771_712),
        resources(100_000, 512, 256 << 20),
    ] {
        // Sent again after the kubelet's own write failed, and with the old values when the kubelet reverts a write.
        let known = update_pod(target.client(), &pod.id, asked.clone());
        assert_eq!(update_pod(target.client(), &pod.id, asked), known, "a repeated request gets the same response");
        assert_eq!(own_files(&pod), before);
        container.check();
    }
    container.update(Shape::guaranteed(800, 160).resources());
    assert_eq!(own_files(&pod), before, "an update of a container does not change the pod's cgroup");
}

#[test]
fn additional_fields_of_the_kubelets_request_are_accepted() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let container = Container::run(&target, &pod, "main", &Shape::guaranteed(500, 128));
    let unified = [("memory.min".to_owned(), "33554432".to_owned()), ("memory.oom.group".to_owned(), "1".to_owned())];
    let mut asked = resources(50_000, 512, 128 << 20);
    if kernel_state::is_v2() {
        asked.unified = unified.into();
    }
    let before = own_files(&pod);
    let request = v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id.clone(),
        overhead: Some(resources(10_000, 102, 16 << 20)),
        resources: Some(asked),
        ..Default::default()
    };
    let answer = target.client().call(|mut c| async move { c.update_pod_sandbox_resources(request).await });
    assert!(answer.as_ref().map_or_else(is_unimplemented, |_| true), "{answer:?}");
    assert_eq!(own_files(&pod), before);
    container.check();
}

#[test]
fn a_pod_that_does_not_exist_is_not_found() {
    let target = Target::get();
    let request = v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: "0123456789abcdef".repeat(4),
        resources: Some(resources(-1, 512, no_limit())),
        ..Default::default()
    };
    let answer = target.client().call(|mut c| async move { c.update_pod_sandbox_resources(request).await });
    let refusal = answer.unwrap_err();
    assert!(is_unimplemented(&refusal) || refusal.code() == Code::NotFound, "{refusal:?}");
}
