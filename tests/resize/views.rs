//! Three views of a container's resources, each compared with the request.

use std::fs;

use cri_api::v1;

use super::resources::{File, Limits};
use crate::support::client::Client;
use crate::support::kernel_state;

/// Returns the differences of ContainerStatus: it must be complete, or empty if the runtime
/// `may_report_nothing`.
pub(super) fn in_status(status: &v1::ContainerStatus, asked: &Limits, may_report_nothing: bool) -> Vec<String> {
    let Some(told) = status.resources.as_ref().and_then(|resources| resources.linux.as_ref()) else {
        return if may_report_nothing { Vec::new() } else { vec!["ContainerStatus: resources are absent".to_owned()] };
    };
    let mut lines = Vec::new();
    let mut compare = |what, found: i64, wanted: &[i64]| {
        if !wanted.contains(&found) {
            lines.push(format!("ContainerStatus: {what} is {found}, not {}", alternatives(wanted)));
        }
    };
    if asked.shares > 0 {
        compare("cpu_shares", told.cpu_shares, &[asked.shares]);
    }
    if asked.quota > 0 {
        compare("cpu_quota", told.cpu_quota, &[asked.quota]);
        compare("cpu_period", told.cpu_period, &[if asked.period == 0 { 100_000 } else { asked.period }]);
    } else {
        // The kubelet treats both as unlimited, and then ignores the period.
        compare("cpu_quota", told.cpu_quota, &[0, -1]);
    }
    compare("memory_limit_in_bytes", told.memory_limit_in_bytes, &[asked.memory]);
    if !asked.cpuset.is_empty() && !told.cpuset_cpus.is_empty() && told.cpuset_cpus != asked.cpuset {
        lines.push(format!("ContainerStatus: cpuset_cpus is {:?}, not {:?}", told.cpuset_cpus, asked.cpuset));
    }
    lines
}

/// Returns the differences of the cgroup's files, read on the host.
pub(super) fn in_kernel(cgroup: &str, asked: &Limits) -> Vec<String> {
    let read = |file: &File| {
        let path = file.on_host(cgroup);
        fs::read_to_string(&path).unwrap_or_else(|e| format!("unreadable ({}: {e})", path.display()))
    };
    let files = asked.files();
    files.iter().filter_map(|file| difference("the kernel", file, read(file).trim())).collect()
}

/// Returns the differences of the same files, read by a command in the container, as the kubelet's
/// tests do.
pub(super) fn inside(client: &Client, id: &str, asked: &Limits) -> Vec<String> {
    let files = asked.files();
    let reads: Vec<String> = files.iter().map(|file| format!("head -n 1 {}", file.inside())).collect();
    let done = client.exec(id, &["sh", "-c", &reads.join("; ")]);
    let found: Vec<&str> = done.stdout.lines().collect();
    if found.len() != files.len() {
        return vec![format!("inside: {} of {} files could be read: {done:?}", found.len(), files.len())];
    }
    files.iter().zip(found).filter_map(|(file, found)| difference("inside", file, found)).collect()
}

fn difference(view: &str, file: &File, found: &str) -> Option<String> {
    let right = file.holds.iter().any(|value| value == found);
    (!right).then(|| format!("{view}: {} is {found}, not {}", file.name, alternatives(&file.holds)))
}

fn alternatives<T: ToString>(wanted: &[T]) -> String {
    wanted.iter().map(T::to_string).collect::<Vec<_>>().join(" or ")
}

/// Returns the number of OOM kills in a cgroup.
pub(super) fn oom_kills(cgroup: &str) -> u64 {
    let file = if kernel_state::is_v2() { "memory.events" } else { "memory.oom_control" };
    let text = fs::read_to_string(kernel_state::cgroup_dir("memory", cgroup).join(file)).unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.expect("the kernel counts OOM kills").parse().unwrap()
}

/// Returns the memory that is charged to a cgroup.
pub(super) fn usage(cgroup: &str) -> i64 {
    let file = if kernel_state::is_v2() { "memory.current" } else { "memory.usage_in_bytes" };
    fs::read_to_string(kernel_state::cgroup_dir("memory", cgroup).join(file)).unwrap().trim().parse().unwrap()
}

#[test]
fn a_wrong_or_incomplete_status_is_reported() {
    let told = v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 1 << 20,
        ..Default::default()
    };
    let asked = Limits::of(&told);
    let wrong = |linux: Option<v1::LinuxContainerResources>| {
        let resources = linux.map(|linux| v1::ContainerResources { linux: Some(linux), windows: None });
        in_status(&v1::ContainerStatus { resources, ..Default::default() }, &asked, false).len()
    };
    assert_eq!(wrong(Some(told.clone())), 0);
    assert_eq!(wrong(Some(v1::LinuxContainerResources { cpu_shares: 511, ..told.clone() })), 1);
    assert_eq!(wrong(Some(v1::LinuxContainerResources { memory_limit_in_bytes: 1 << 20, ..Default::default() })), 3);
    assert_eq!(wrong(Some(v1::LinuxContainerResources { memory_limit_in_bytes: 0, ..told })), 1);
    assert_eq!(wrong(None), 1);
}
