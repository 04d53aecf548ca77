//! Exited containers keep their cgroup and statistics, but do not restrict the limits of their pod.

use std::io;

use rustix::process::Signal;

use super::*;
use crate::support::harness::kill;

/// Writes the limits of the kubelet's pod. Version 1 refuses a quota below that of any cgroup in
/// the pod.
fn set_pod_quota(parent: &str, millis: i64) -> io::Result<()> {
    let dir = kernel_state::cgroup_dir("cpu", parent);
    if kernel_state::is_v2() {
        fs::write(dir.join("cpu.max"), format!("{} 100000", millis * 100))
    } else {
        fs::write(dir.join("cpu.cfs_quota_us"), (millis * 100).to_string())
    }
}

/// Limits of a container that has requests: on version 2 some of its memory is protected.
fn requests(millis: i64, mib: i64) -> v1::LinuxContainerResources {
    let mut asked = limits(millis, mib);
    if kernel_state::is_v2() {
        asked.unified.insert("memory.min".to_owned(), (8 * MIB).to_string());
    }
    asked
}

/// Checks that the pod can be lowered below the limits of the exited container, and that the
/// container's usage is still reported.
fn is_released(daemon: &Daemon, parent: &str, id: &str) {
    let client = daemon.client();
    assert_eq!(client.status(id).state(), v1::ContainerState::ContainerExited);
    set_pod_quota(parent, 200).unwrap_or_else(|e| panic!("lowering the pod of the ended container {id}: {e}"));
    set_pod_quota(parent, 1000).unwrap();
    if kernel_state::is_v2() {
        assert_eq!(fs::read_to_string(file(daemon, id, "memory.min")).unwrap(), "0\n");
    }
    let request = v1::ContainerStatsRequest { container_id: id.to_owned() };
    let stats = client.call(|mut c| async move { c.container_stats(request).await }).unwrap().stats.unwrap();
    assert!(stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value > 0);
    assert!(stats.memory.is_some());
    client.update(id, limits(900, 64)).unwrap();
    set_pod_quota(parent, 200).unwrap_or_else(|e| panic!("after an update of the ended container {id}: {e}"));
    set_pod_quota(parent, 1000).unwrap();
}

#[test]
fn however_a_container_ends_its_pod_can_be_lowered_and_its_statistics_stay() {
    let mut daemon = Daemon::start();
    let parent = daemon.env.pod_cgroup("pod-of-the-kubelet");
    set_pod_quota(&parent, 1000).unwrap();
    let pod = daemon.run_pod_with("pod", |config| config.linux.as_mut().unwrap().cgroup_parent = parent.clone());
    let idle = daemon.client().run_limited(&pod, "live", limits(100, 64));

    let mut config = container("by-itself", &["sh", "-c", "exit 3"]);
    config.linux.as_mut().unwrap().resources = Some(requests(1000, 64));
    let by_itself = daemon.client().finish_config(&pod, config).id;
    is_released(&daemon, &parent, &by_itself);

    let stopped = daemon.client().run_limited(&pod, "stopped", requests(1000, 64));
    daemon.client().stop(&stopped, 0).unwrap();
    is_released(&daemon, &parent, &stopped);

    let mut config = container("never-started", &["/no/such/program"]);
    config.linux.as_mut().unwrap().resources = Some(requests(1000, 64));
    let never = daemon.client().try_create(&pod, config).unwrap();
    daemon.client().start(&never).unwrap_err();
    is_released(&daemon, &parent, &never);

    let unseen = daemon.client().run_limited(&pod, "unseen", requests(1000, 64));
    let pid = daemon.pids(&unseen)[0];
    daemon.kill9();
    kill(pid, Signal::KILL);
    daemon.revive();
    daemon.client().wait_exited(&unseen);
    is_released(&daemon, &parent, &unseen);

    let mut config = limited("unseen", requests(1000, 64));
    config.metadata.as_mut().unwrap().attempt = 1;
    let again = daemon.client().run_config(&pod, config);
    if !kernel_state::is_v2() {
        assert_eq!(set_pod_quota(&parent, 200).unwrap_err().kind(), io::ErrorKind::InvalidInput, "it runs");
    }
    daemon.client().stop(&again, 0).unwrap();
    is_released(&daemon, &parent, &again);
    assert_limits(&daemon, &idle, 100, 64);

    daemon.client().remove_pod(&pod.id).unwrap();
    daemon.env.remove_pod_cgroup(&parent);
}

#[test]
fn the_cgroup_of_a_container_that_ended_before_this_daemon_is_released_too() {
    let mut daemon = Daemon::start();
    let parent = daemon.env.pod_cgroup("pod-of-the-kubelet");
    set_pod_quota(&parent, 1000).unwrap();
    let pod = daemon.run_pod_with("pod", |config| config.linux.as_mut().unwrap().cgroup_parent = parent.clone());
    let id = daemon.client().run_limited(&pod, "main", requests(1000, 64));
    daemon.client().stop(&id, 0).unwrap();
    daemon.kill9();
    // The state that a daemon without this feature leaves.
    let (name, bound) = if kernel_state::is_v2() { ("memory.min", 8 * MIB) } else { ("cpu.cfs_quota_us", 100_000) };
    fs::write(file(&daemon, &id, name), bound.to_string()).unwrap();
    daemon.revive();
    is_released(&daemon, &parent, &id);
    daemon.client().remove_pod(&pod.id).unwrap();
    daemon.env.remove_pod_cgroup(&parent);
}

#[test]
fn a_pod_cgroup_of_crisp_is_lowered_below_an_exited_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| {
        config.linux.as_mut().unwrap().resources = Some(limits(1000, 128));
    });
    let id = client.run_limited(&pod, "main", requests(1000, 64));
    client.stop(&id, 0).unwrap();
    let lower = v1::LinuxContainerResources { cpuset_cpus: "0".to_owned(), ..limits(200, 64) };
    client.update_pod(&pod.id, lower, v1::LinuxContainerResources::default()).unwrap();
    let [cpu, _, _] = kernel_limits(&daemon, &format!("pod{}", pod.id));
    assert_eq!(cpu, "20000 100000");
}
