//! Daemons that are killed at any moment, and the daemons after them.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cri_api::v1;
use cri_api::v1::{ContainerState, PodSandboxState};
use rustix::process::Signal;
use tonic::Code;

use crate::support::client::{container, log_lines, namespaces, pod_namespaces, text_of};
use crate::support::harness::{Daemon, kill, seconds, times, wait_for};
use crate::support::kernel_state;

fn nanos() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

#[test]
fn a_restarted_daemon_has_the_state_of_the_previous_one() {
    let mut daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let stopped = daemon.run_pod("stopped");
    client.stop_pod(&stopped.id).unwrap();
    let running = client.run_idle(&pod, "running");
    let created = client.create(&pod, "created", &["sh", "-c", "echo late; exit 9"]);
    let exited = client.script(&pod, "exited", "exit 3").id;
    let before: Vec<_> = [&running, &created, &exited].map(|id| client.status(id)).to_vec();
    let pods = [&pod.id, &stopped.id].map(|id| client.pod_status(id));
    let pids = daemon.pids(&running);

    daemon.restart();
    let client = daemon.client();
    let after: Vec<_> = [&running, &created, &exited].map(|id| client.status(id)).to_vec();
    assert_eq!(after, before);
    assert_eq!([&pod.id, &stopped.id].map(|id| client.pod_status(id)), pods);
    assert_eq!((client.pods().len(), client.containers().len()), (2, 3));
    assert_eq!(daemon.pids(&running), pids, "the container was not restarted");

    assert_eq!(client.exec_script(&running, "echo alive"), "alive\n");
    client.start(&created).unwrap();
    assert_eq!(client.wait_exited(&created).exit_code, 9);
    assert_eq!(client.lines(&created)[0].text, "late");
    client.stop(&running, 10).unwrap();
    assert_eq!(client.status(&running).exit_code, 0);
    let refusal = client.try_create(&pod, container("running", &["true"])).unwrap_err();
    assert_eq!(refusal.code(), Code::AlreadyExists, "names stay reserved: {refusal:?}");
    for id in [&running, &created, &exited] {
        client.remove(id).unwrap();
    }
    client.create(&pod, "running", &["true"]);
}

#[test]
fn a_container_continues_to_print_while_no_daemon_runs() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i; sleep 0.01; done";
    let id = daemon.client().run(&pod, "main", &["sh", "-c", script]);
    for _ in 0..3 {
        daemon.kill9();
        std::thread::sleep(Duration::from_millis(200));
        daemon.revive();
    }
    let status = daemon.client().wait_exited(&id);
    assert_eq!(status.exit_code, 0);
    let text = text_of(&log_lines(&status.log_path), "stdout");
    let numbers: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers, (1..=300).collect::<Vec<_>>());
}

#[test]
fn an_exit_without_a_daemon_has_its_code_and_its_time() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run(&pod, "main", &["sh", "-c", "echo up; sleep 0.5; echo bye; exit 17"]);
    let before = daemon.client().status(&id);
    let pid = daemon.pids(&id)[0];
    daemon.kill9();
    wait_for("the container to end", seconds(20), || (!kernel_state::is_alive(pid)).then_some(()));
    let ended = nanos();
    std::thread::sleep(Duration::from_millis(1500));
    daemon.revive();
    let status = daemon.client().status(&id);
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!((status.exit_code, status.reason.as_str()), (17, "Error"));
    assert_eq!(status.started_at, before.started_at);
    let late = ended + i64::try_from(seconds(1).as_nanos()).unwrap();
    assert!(status.finished_at > status.started_at && status.finished_at < late, "{} {ended}", status.finished_at);
    assert_eq!(log_lines(&status.log_path).last().unwrap().text, "bye");
}

#[test]
fn everything_can_be_stopped_and_removed_after_a_restart() {
    let mut daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let shared = daemon.run_pod_with("shared", |config| *pod_namespaces(config) = namespaces(v1::NamespaceMode::Pod));
    client.run(&pod, "stubborn", &["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]);
    client.create(&pod, "created", &["true"]);
    client.script(&pod, "exited", "exit 0");
    let mut config = container("joined", &["sleep", "1000"]);
    crate::support::client::security(&mut config).namespace_options = Some(namespaces(v1::NamespaceMode::Pod));
    client.run_config(&shared, config);
    daemon.restart();
    let client = daemon.client();
    for pod in [&pod, &shared] {
        client.stop_pod(&pod.id).unwrap();
        client.remove_pod(&pod.id).unwrap();
    }
    assert!(client.pods().is_empty() && client.containers().is_empty());
    daemon.env.wait_until_empty(Some(daemon.pid()));
}

#[test]
fn a_daemon_that_is_killed_repeatedly_loses_nothing() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let before = daemon.client().status(&id);
    for _ in 0..times(5, 2) {
        daemon.restart();
    }
    assert_eq!(daemon.client().status(&id), before);
    let shims = daemon.shims();
    assert_eq!(shims.len(), 1);
    // The shim closes the connections of killed daemons.
    wait_for("dead connections to be closed", seconds(5), || (kernel_state::holding(shims[0]).fds < 30).then_some(()));
}

#[test]
fn a_request_interrupted_by_a_crash_can_be_repeated() {
    let mut daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "main", &["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"]);
    client.wait_printed(&id, "up");
    let socket = daemon.env.socket();
    let (stopping, exec) = std::thread::scope(|threads| {
        let stopping = threads.spawn(|| crate::support::client::Client::connect(&socket).stop(&id, 600));
        let exec =
            threads.spawn(|| crate::support::client::Client::connect(&socket).try_exec(&id, &["sleep", "600"], 0));
        std::thread::sleep(Duration::from_millis(500) * crate::support::harness::slow());
        daemon.kill9();
        (stopping.join().unwrap(), exec.join().unwrap())
    });
    assert!(stopping.is_err() && exec.is_err());
    daemon.revive();
    assert_eq!(daemon.client().status(&id).state(), ContainerState::ContainerRunning);
    daemon.client().stop(&id, 1).unwrap();
    assert_eq!(daemon.client().status(&id).exit_code, 137);
}

#[test]
fn the_exit_of_a_shim_stops_its_pod() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (pod, other) = (daemon.run_pod("pod"), daemon.run_pod("other"));
    let id = client.run_idle(&pod, "main");
    let done = client.script(&pod, "done", "exit 5").id;
    let untouched = client.run_idle(&other, "main");
    let pids = daemon.pids(&id);
    kill(shim_of(&daemon, &pod.id), Signal::KILL);
    let status = client.wait_exited(&id);
    assert_ne!(status.exit_code, 0);
    assert!(!status.reason.is_empty() && status.finished_at > 0, "{status:?}");
    assert!(pids.iter().all(|pid| !kernel_state::is_alive(*pid)), "status is Exited, but the process runs");
    wait_for("the pod to be not ready", seconds(10), || {
        (client.pod_status(&pod.id).state() == PodSandboxState::SandboxNotready).then_some(())
    });
    assert_eq!(client.status(&done).exit_code, 5);
    assert_eq!(client.status(&untouched).state(), ContainerState::ContainerRunning);
    let refusal = client.try_create(&pod, container("next", &["true"])).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    client.stop(&id, 5).unwrap();
    client.remove(&id).unwrap();
    client.stop_pod(&pod.id).unwrap();
    client.remove_pod(&pod.id).unwrap();
    daemon.run_pod("pod");
}

#[test]
fn a_shim_that_exited_without_a_daemon_is_detected() {
    let mut daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| *pod_namespaces(config) = namespaces(v1::NamespaceMode::Pod));
    let mut config = container("main", &["sleep", "1000"]);
    crate::support::client::security(&mut config).namespace_options = Some(namespaces(v1::NamespaceMode::Pod));
    let id = client.run_config(&pod, config);
    let pids = daemon.pids(&id);
    let shim = shim_of(&daemon, &pod.id);
    daemon.kill9();
    kill(shim, Signal::KILL);
    wait_for("the shim to die", seconds(5), || (!kernel_state::is_alive(shim)).then_some(()));
    daemon.revive();
    let client = daemon.client();
    assert_eq!(client.pod_status(&pod.id).state(), PodSandboxState::SandboxNotready);
    assert_eq!(client.status(&id).state(), ContainerState::ContainerExited);
    assert!(pids.iter().all(|pid| !kernel_state::is_alive(*pid)), "status is Exited, but the process runs");
    client.remove_pod(&pod.id).unwrap();
    daemon.env.wait_until_empty(Some(daemon.pid()));
}

/// The PID of a pod's shim, from the daemon's file.
fn shim_of(daemon: &Daemon, pod: &str) -> i32 {
    let note = daemon.env.state().join("pods").join(pod).join("shim.pid");
    let pid = fs::read_to_string(note).unwrap().trim().parse().unwrap();
    assert!(daemon.shims().contains(&pid));
    pid
}

#[test]
fn a_reboot_leaves_nothing_of_the_containers() {
    let mut daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    client.script(&pod, "main", "echo data > /tmp/file");
    client.run_idle(&pod, "running");
    let layers = daemon.env.root().join("containers");
    assert_eq!(fs::read_dir(&layers).unwrap().count(), 2);
    // A reboot removes all processes, mounts, cgroups and files on a tmpfs.
    daemon.kill9();
    daemon.env.power_off();
    daemon.revive();
    assert!(daemon.client().pods().is_empty() && daemon.client().containers().is_empty());
    assert_eq!(fs::read_dir(&layers).unwrap().count(), 0);
    let pod = daemon.run_pod("pod");
    assert_eq!(daemon.client().script(&pod, "main", "cat /tmp/file || echo gone").stdout, "gone\n");
}

#[test]
fn a_truncated_record_does_not_affect_other_pods() {
    let mut daemon = Daemon::start();
    let (pod, broken) = (daemon.run_pod("pod"), daemon.run_pod("broken"));
    let id = daemon.client().run_idle(&pod, "main");
    daemon.kill9();
    let file = daemon.env.state().join("pods").join(&broken.id).join("pod.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, &text[..text.len() / 2]).unwrap();
    daemon.revive();
    let client = daemon.client();
    assert_eq!(client.status(&id).state(), ContainerState::ContainerRunning);
    assert!(daemon.env.read_log().contains("pod.json"), "the log names the file");
    // With the file restored, the pod is as before.
    daemon.kill9();
    fs::write(&file, &text).unwrap();
    daemon.revive();
    assert_eq!(daemon.client().pod_status(&broken.id).state(), PodSandboxState::SandboxReady);
}
