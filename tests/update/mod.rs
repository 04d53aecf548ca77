//! Guarantees of crisp for resizes beyond those of other runtimes: all or nothing, read back from
//! the kernel.

mod concurrency;
mod crash;
mod drift;
mod effective;
mod ended;
mod history;
mod log;
pub(crate) mod memory;
mod notice;
mod oom_score;
mod outcomes;
mod pod_resources;
mod pods;
mod story;
mod unified;
mod write_failures;

use std::fs;
use std::path::PathBuf;

use cri_api::v1;

use crate::support::client::{Asked, Client, Pod, container};
use crate::support::harness::Daemon;
use crate::support::kernel_state;

const MIB: i64 = 1 << 20;

/// Limits of cpu (in thousandths) and memory, in the form in which the kubelet sends them.
pub(crate) fn limits(millis: i64, mib: i64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: millis * 100,
        cpu_shares: (millis * 1024 / 1000).max(2),
        memory_limit_in_bytes: mib * MIB,
        ..Default::default()
    }
}

impl Client {
    pub(crate) fn update(&self, id: &str, linux: v1::LinuxContainerResources) -> Asked<()> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        self.call(|mut c| async move { c.update_container_resources(request).await }).map(drop)
    }

    pub(crate) fn update_pod(
        &self,
        id: &str,
        resources: v1::LinuxContainerResources,
        overhead: v1::LinuxContainerResources,
    ) -> Asked<()> {
        let request = v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: id.to_owned(),
            resources: Some(resources),
            overhead: Some(overhead),
            pod_resources: None,
        };
        self.call(|mut c| async move { c.update_pod_sandbox_resources(request).await }).map(drop)
    }

    /// The active limits in a status.
    pub(crate) fn in_force(&self, id: &str) -> v1::LinuxContainerResources {
        self.status(id).resources.expect("limits in the status").linux.unwrap()
    }

    /// The verbose part of a status, which CRI does not define.
    pub(crate) fn container_info(&self, id: &str) -> serde_json::Value {
        serde_json::from_str(&self.try_status(id).unwrap().info["info"]).unwrap()
    }

    pub(crate) fn pod_info(&self, id: &str) -> serde_json::Value {
        serde_json::from_str(&self.try_pod_status(id).unwrap().info["info"]).unwrap()
    }

    /// A container that only waits, with these limits.
    pub(crate) fn run_limited(&self, pod: &Pod, name: &str, limits: v1::LinuxContainerResources) -> String {
        self.run_config(pod, limited(name, limits))
    }
}

pub(crate) fn limited(name: &str, limits: v1::LinuxContainerResources) -> v1::ContainerConfig {
    let mut config = container(name, &["sleep", "100000"]);
    config.linux.as_mut().unwrap().resources = Some(limits);
    config
}

/// A file of a cgroup, which is named by the end of its path.
pub(crate) fn file(daemon: &Daemon, cgroup: &str, name: &str) -> PathBuf {
    let dirs = kernel_state::cgroups_under(daemon.env.cgroup());
    let found = dirs.into_iter().find(|dir| dir.ends_with(cgroup) && dir.join(name).exists());
    found.unwrap_or_else(|| panic!("no cgroup {cgroup} with {name}")).join(name)
}

/// The cpu limit, the weight and the memory limit that a cgroup has in the kernel.
pub(crate) fn kernel_limits(daemon: &Daemon, cgroup: &str) -> [String; 3] {
    let read = |name: &str| fs::read_to_string(file(daemon, cgroup, name)).unwrap().trim().to_owned();
    if kernel_state::is_v2() {
        [read("cpu.max"), read("cpu.weight"), read("memory.max")]
    } else {
        let cpu = format!("{} {}", read("cpu.cfs_quota_us"), read("cpu.cfs_period_us"));
        [cpu, read("cpu.shares"), read("memory.limit_in_bytes")]
    }
}

/// Returns the number of OOM kills in the cgroup.
pub(crate) fn oom_kills(daemon: &Daemon, cgroup: &str) -> String {
    let name = if kernel_state::is_v2() { "memory.events" } else { "memory.oom_control" };
    let text = fs::read_to_string(file(daemon, cgroup, name)).unwrap();
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().to_owned()
}

/// Asserts that status and kernel have exactly these limits.
pub(crate) fn assert_limits(daemon: &Daemon, id: &str, millis: i64, mib: i64) {
    let asked = limits(millis, mib);
    let shown = daemon.client().in_force(id);
    assert_eq!(
        (shown.cpu_period, shown.cpu_quota, shown.cpu_shares, shown.memory_limit_in_bytes),
        (asked.cpu_period, asked.cpu_quota, asked.cpu_shares, asked.memory_limit_in_bytes),
        "status"
    );
    let [cpu, _, memory] = kernel_limits(daemon, id);
    assert_eq!((cpu, memory), (format!("{} 100000", millis * 100), (mib * MIB).to_string()), "kernel");
}
