//! The cgroups of a container's processes, and their limits.

use std::fs;
use std::path::PathBuf;

use cri_api::v1;

use crate::support::client::{Client, container, security};
use crate::support::harness::{Daemon, times};
use crate::support::{cgroup_fixture, kernel_state};

/// The value in a file of the container's cgroup.
fn value(controller: &str, cgroup: &str, file: &str) -> String {
    let path = kernel_state::cgroup_dir(controller, cgroup).join(file);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim().to_owned()
}

#[test]
fn a_container_is_directly_below_the_pods_cgroup_in_every_hierarchy() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let parent = daemon.env.pod_cgroup("pod-of-the-kubelet");
    let pod = daemon.run_pod_with("pod", |config| config.linux.as_mut().unwrap().cgroup_parent = parent.clone());
    let id = client.run_idle(&pod, "main");
    let expected = format!("{parent}/{id}");
    client.exec_script(&id, "sleep 1000 > /dev/null 2>&1 &");
    let pids = daemon.pids(&id);
    assert!(pids.len() >= 2, "{pids:?}");
    for pid in pids {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next().unwrap(), fields.next().unwrap());
            // A controller that is mounted nowhere has no cgroup to be in.
            let mounted =
                controllers.is_empty() || kernel_state::hierarchies().iter().any(|(name, _)| name == controllers);
            assert!(path == expected || !mounted, "process {pid}: {line}");
        }
    }
    client.remove_pod(&pod.id).unwrap();
    // The kubelet's own cgroup is the kubelet's to remove.
    daemon.env.remove_pod_cgroup(&parent);
}

#[test]
fn a_pod_without_a_parent_gets_a_cgroup_that_is_removed_with_it() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let dirs = kernel_state::cgroups_under(daemon.env.cgroup());
    let own = dirs.iter().filter(|dir| dir.ends_with(&id)).count();
    let all: Vec<_> = kernel_state::hierarchies().into_iter().map(|(name, _)| name).collect();
    assert_eq!(own, all.len(), "hierarchies {all:?}, cgroups {dirs:?}");
    client.remove_pod(&pod.id).unwrap();
    assert!(kernel_state::cgroups_under(daemon.env.cgroup()).is_empty());
}

/// Where `cgroup` is, by the names of the hierarchies.
fn trees_with(cgroup: &str) -> Vec<String> {
    let there = |point: &PathBuf| point.join(cgroup.trim_start_matches('/')).is_dir();
    kernel_state::hierarchies().into_iter().filter(|(_, point)| there(point)).map(|(name, _)| name).collect()
}

#[test]
fn the_parent_cgroup_created_by_crisp_is_removed_with_the_last_pod() {
    let mut daemon = Daemon::start();
    let above = daemon.env.cgroup().to_owned();
    let (one, two) = (daemon.run_pod("one"), daemon.run_pod("two"));
    assert_eq!(trees_with(&above).len(), kernel_state::hierarchies().len());
    daemon.client().remove_pod(&one.id).unwrap();
    assert_eq!(trees_with(&above).len(), kernel_state::hierarchies().len());
    // The next daemon knows which ones crisp created.
    daemon.restart();
    daemon.client().remove_pod(&two.id).unwrap();
    assert_eq!(trees_with(&above), Vec::<String>::new());
}

#[test]
fn a_parent_cgroup_that_crisp_did_not_create_is_kept() {
    let daemon = Daemon::start();
    let above = daemon.env.cgroup().to_owned();
    cgroup_fixture::make(&above);
    let theirs = trees_with(&above);
    let pod = daemon.run_pod("pod");
    daemon.client().remove_pod(&pod.id).unwrap();
    assert_eq!(trees_with(&above), theirs);
}

#[test]
fn pods_created_during_the_removal_of_the_last_one_have_their_cgroup() {
    let daemon = Daemon::start();
    std::thread::scope(|scope| {
        for who in 0..4 {
            let (config, socket) = (daemon.pod_config(&format!("pod-{who}")), daemon.env.socket());
            scope.spawn(move || {
                let client = Client::connect(&socket);
                for _ in 0..times(10, 2) {
                    let pod = client.run_pod_of(config.clone());
                    client.remove_pod(&pod.id).unwrap();
                }
            });
        }
    });
    assert_eq!(trees_with(daemon.env.cgroup()), Vec::<String>::new());
}

fn limited(name: &str, resources: v1::LinuxContainerResources) -> v1::ContainerConfig {
    let mut config = container(name, &["sleep", "1000"]);
    config.linux.as_mut().unwrap().resources = Some(resources);
    config
}

#[test]
fn requested_limits_are_in_the_kernel_and_in_the_status() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let parent = daemon.env.pod_cgroup("limits");
    let pod = daemon.run_pod_with("pod", |config| config.linux.as_mut().unwrap().cgroup_parent = parent.clone());
    let asked = v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 25_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 64 << 20,
        ..Default::default()
    };
    let id = client.run_config(&pod, limited("main", asked.clone()));
    let cgroup = format!("{parent}/{id}");
    if kernel_state::is_v2() {
        assert_eq!(value("cpu", &cgroup, "cpu.max"), "25000 100000");
        assert_eq!(value("cpu", &cgroup, "cpu.weight"), "59");
        assert_eq!(value("memory", &cgroup, "memory.max"), (64 << 20).to_string());
    } else {
        assert_eq!(value("cpu", &cgroup, "cpu.cfs_period_us"), "100000");
        assert_eq!(value("cpu", &cgroup, "cpu.cfs_quota_us"), "25000");
        assert_eq!(value("cpu", &cgroup, "cpu.shares"), "512");
        assert_eq!(value("memory", &cgroup, "memory.limit_in_bytes"), (64 << 20).to_string());
    }
    let shown = client.status(&id).resources.unwrap().linux.unwrap();
    assert_eq!((shown.cpu_period, shown.cpu_quota, shown.cpu_shares), (100_000, 25_000, 512));
    assert_eq!(shown.memory_limit_in_bytes, 64 << 20);
    client.remove_pod(&pod.id).unwrap();
    daemon.env.remove_pod_cgroup(&parent);
}

#[test]
fn a_container_without_limits_has_none_and_no_huge_pages() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // As the kubelet sends it for a container without requests.
    let asked = v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_shares: 2,
        oom_score_adj: 1000,
        hugepage_limits: vec![v1::HugepageLimit { page_size: "2MB".into(), limit: 0 }],
        ..Default::default()
    };
    let id = client.run_config(&pod, limited("main", asked));
    let shown = client.status(&id).resources.unwrap().linux.unwrap();
    assert_eq!((shown.cpu_quota, shown.memory_limit_in_bytes, shown.cpu_shares), (0, 0, 2));
}

#[test]
fn invalid_limits_are_refused_and_leave_nothing() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    for (field, asked) in [
        ("cpu_quota", v1::LinuxContainerResources { cpu_quota: 5, ..Default::default() }),
        ("cpuset_cpus", v1::LinuxContainerResources { cpuset_cpus: "0-".into(), ..Default::default() }),
        ("memory_limit_in_bytes", v1::LinuxContainerResources { memory_limit_in_bytes: -7, ..Default::default() }),
        ("oom_score_adj", v1::LinuxContainerResources { oom_score_adj: 5000, ..Default::default() }),
    ] {
        let refusal = client.try_create(&pod, limited("main", asked)).unwrap_err();
        assert_eq!(refusal.code(), tonic::Code::InvalidArgument, "{field}: {refusal:?}");
        assert!(refusal.message().contains(field), "{field}: {refusal:?}");
    }
    // A valid value that no machine has: only the kernel refuses it.
    let asked = v1::LinuxContainerResources { cpuset_cpus: "1000".into(), ..Default::default() };
    let refusal = client.try_create(&pod, limited("main", asked)).unwrap_err();
    assert!(refusal.message().contains("cpuset"), "{refusal:?}");
    daemon.wait_until_like(&before);
}

#[test]
fn a_container_over_its_memory_is_reported_as_oom_killed() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // The shell builds one long string in itself, so that the first process is the one to go.
    let script = "x=0123456789abcdef; while :; do x=$x$x; done";
    let mut config = container("main", &["sh", "-c", script]);
    config.linux.as_mut().unwrap().resources =
        Some(v1::LinuxContainerResources { memory_limit_in_bytes: 24 << 20, ..Default::default() });
    let ended = client.finish_config(&pod, config);
    assert_eq!((ended.status.reason.as_str(), ended.status.exit_code), ("OOMKilled", 137), "{:?}", ended.stderr);
}

#[test]
fn a_container_sees_only_its_own_cgroups_read_only() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["sleep", "1000"]);
    let limits = v1::LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() };
    config.linux.as_mut().unwrap().resources = Some(limits);
    // The right that would be needed for a write.
    crate::support::client::security(&mut config).capabilities =
        Some(v1::Capability { add_capabilities: vec!["SYS_ADMIN".into()], ..Default::default() });
    let id = client.run_config(&pod, config);
    let (limit, all) = if kernel_state::is_v2() {
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup")
    } else {
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory")
    };
    assert_eq!(client.exec_script(&id, &format!("cat {limit}")), format!("{}\n", 64 << 20));
    let write = client.exec(&id, &["sh", "-c", &format!("echo 1073741824 > {limit}")]);
    assert!(write.code != 0 && write.stderr.contains("Read-only file system"), "{write:?}");
    let dig = client.exec(&id, &["mkdir", &format!("{all}/own")]);
    assert!(dig.code != 0, "{dig:?}");
    assert_eq!(client.exec_script(&id, &format!("cat {all}/cgroup.procs | head -n 1")), "1\n");
    let unified = client.exec_script(&id, "mount -t cgroup2 | grep -c /sys/fs/cgroup || true");
    assert_eq!(unified, if kernel_state::is_v2() { "1\n" } else { "0\n" }, "cgroup2 inside");
    if !kernel_state::is_v2() {
        assert_eq!(client.exec_script(&id, "ls -d /sys/fs/cgroup/unified 2> /dev/null || echo none"), "none\n");
    }
}

/// As systemd and Docker do in a container: their processes are in a nested cgroup, and those of the container's own
/// cgroup would be in the way. Only cgroup v2 has controllers to pass on here.
#[test]
fn a_command_is_executed_in_a_container_that_passes_controllers_on_to_nested_cgroups() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container(
        "main",
        &[
            "sh",
            "-c",
            "mkdir /tmp/c && mount -t cgroup2 c /tmp/c && p=$(grep ^0:: /proc/1/cgroup) && cd /tmp/c${p#0::} && mkdir inner \
             && echo 1 > inner/cgroup.procs && (echo +pids > cgroup.subtree_control || true) && echo nested \
             && exec sleep 100000",
        ],
    );
    let add = v1::Capability { add_capabilities: vec!["SYS_ADMIN".to_owned()], ..Default::default() };
    security(&mut config).capabilities = Some(add);
    let id = client.run_config(&pod, config);
    client.wait_printed(&id, "nested");
    let own = client.exec_script(&id, "grep ^0:: /proc/self/cgroup");
    if kernel_state::is_v2() {
        assert_eq!(own, "0::/inner\n");
        let dirs = kernel_state::cgroups_under(daemon.env.cgroup());
        let passed = dirs.iter().find(|dir| dir.ends_with(&id)).unwrap().join("cgroup.subtree_control");
        assert_eq!(fs::read_to_string(passed).unwrap(), "pids\n");
    }
    client.stop(&id, 0).unwrap();
    client.remove(&id).unwrap();
}

#[test]
fn a_frozen_container_can_be_removed() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    for verb in ["stop", "remove"] {
        let id = client.run_idle(&pod, "main");
        let (file, word) = if kernel_state::is_v2() { ("cgroup.freeze", "1") } else { ("freezer.state", "FROZEN") };
        let dirs = kernel_state::cgroups_under(daemon.env.cgroup());
        let dir = dirs.iter().find(|dir| dir.ends_with(&id) && dir.join(file).exists()).unwrap();
        fs::write(dir.join(file), word).unwrap();
        if verb == "stop" {
            client.stop(&id, 1).unwrap();
            assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerExited);
        }
        client.remove(&id).unwrap();
        daemon.wait_until_like(&before);
    }
}
