//! Shims that are slow, stopped, killed, or of another version.

use std::fs;
use std::time::{Duration, Instant};

use cri_api::v1;
use cri_api::v1::{ContainerState, PodSandboxState};
use rustix::process::Signal;

use crate::support::client::container;
use crate::support::harness::{Daemon, kill, seconds, wait_for};
use crate::support::kernel_state;

fn shim_of(daemon: &Daemon, pod: &str) -> i32 {
    let note = daemon.env.state().join("pods").join(pod).join("shim.pid");
    fs::read_to_string(note).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_launch_has_no_mounts_of_other_pods() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    daemon.client().run_idle(&pod, "main");
    // It logs a failure, and continues.
    let said = fs::read_to_string(daemon.env.state().join("pods").join(&pod.id).join("shim.log")).unwrap();
    assert!(!said.contains("among all mounts"), "{said}");
}

#[test]
fn a_stopped_shim_loses_nothing() {
    let mut daemon = Daemon::start();
    let (pod, other) = (daemon.run_pod("pod"), daemon.run_pod("other"));
    let id = daemon.client().run_idle(&pod, "main");
    let fine = daemon.client().run_idle(&other, "main");
    let shim = shim_of(&daemon, &pod.id);
    kill(shim, Signal::STOP);
    daemon.kill9();
    let begin = Instant::now();
    daemon.revive();
    assert!(begin.elapsed() < seconds(15));
    assert_eq!(daemon.client().exec_script(&fine, "echo alive"), "alive\n");
    assert_eq!(daemon.client().status(&id).state(), ContainerState::ContainerRunning);
    kill(shim, Signal::CONT);
    wait_for("the shim to be found", seconds(20), || daemon.client().try_exec(&id, &["true"], 5).is_ok().then_some(()));
    assert_eq!(daemon.client().pod_status(&pod.id).state(), PodSandboxState::SandboxReady);
}

#[test]
fn a_pod_with_a_stopped_shim_is_removed() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    daemon.client().run_idle(&pod, "main");
    let id = daemon.client().run(&pod, "polite", &["sh", "-c", "trap 'exit 3' TERM; while :; do sleep 0.1; done"]);
    let shim = shim_of(&daemon, &pod.id);
    kill(shim, Signal::STOP);
    let begin = Instant::now();
    // It exits long before that, as the kernel reports.
    daemon.client().stop(&id, 40).unwrap();
    assert_eq!(daemon.client().status(&id).state(), ContainerState::ContainerExited);
    daemon.client().remove(&id).unwrap();
    daemon.client().remove_pod(&pod.id).unwrap();
    assert!(begin.elapsed() < seconds(8), "{:?}", begin.elapsed());
    assert!(!kernel_state::is_alive(shim));
}

#[test]
fn a_removal_waits_once_for_a_stopped_shim() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    for name in ["one", "two", "three", "four"] {
        daemon.client().run_idle(&pod, name);
    }
    kill(shim_of(&daemon, &pod.id), Signal::STOP);
    let begin = Instant::now();
    daemon.client().stop_pod(&pod.id).unwrap();
    daemon.client().remove_pod(&pod.id).unwrap();
    assert!(begin.elapsed() < seconds(6), "{:?}", begin.elapsed());
}

#[test]
fn a_shim_stopped_during_the_removal_of_a_container_continues_with_its_pod() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let (id, other) = (daemon.client().run_idle(&pod, "main"), daemon.client().run_idle(&pod, "other"));
    let shim = shim_of(&daemon, &pod.id);
    kill(shim, Signal::STOP);
    daemon.client().stop(&id, 0).unwrap();
    daemon.client().remove(&id).unwrap();
    assert_eq!(daemon.client().status(&other).state(), ContainerState::ContainerRunning);
    kill(shim, Signal::CONT);
    assert_eq!(daemon.client().exec_script(&other, "echo alive"), "alive\n");
    daemon.client().stop(&other, 0).unwrap();
    assert_eq!(daemon.client().status(&other).exit_code, 137, "its exit is reported again");
    let again = daemon.client().run_idle(&pod, "main");
    assert_eq!(daemon.client().exec_script(&again, "echo alive"), "alive\n");
}

#[test]
fn an_exit_without_an_exit_file_is_found() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let file = daemon.env.state().join("pods").join(&pod.id).join("containers").join(&id).join("container.json");
    let running = fs::read(&file).unwrap();
    daemon.client().stop_pod(&pod.id).unwrap();
    let exit = file.with_file_name("exit.json");
    fs::remove_file(&exit).unwrap();
    daemon.kill9();
    fs::write(&file, running).unwrap();
    daemon.revive();
    let status = daemon.client().status(&id);
    assert_eq!((status.state(), status.exit_code), (ContainerState::ContainerExited, 255));
    daemon.client().remove_pod(&pod.id).unwrap();
}

#[test]
fn the_shim_of_another_pod_is_not_killed() {
    let daemon = Daemon::start();
    let (pod, other) = (daemon.run_pod("pod"), daemon.run_pod("other"));
    let id = daemon.client().run_idle(&other, "main");
    daemon.client().stop_pod(&pod.id).unwrap();
    let dir = daemon.env.state().join("pods").join(&pod.id);
    assert!(!dir.join("shim.pid").exists() && !dir.join("shim.start").exists());
    fs::write(dir.join("shim.start"), "77").unwrap();
    fs::write(dir.join("shim.pid"), shim_of(&daemon, &other.id).to_string()).unwrap();
    daemon.client().remove_pod(&pod.id).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(daemon.client().exec_script(&id, "echo alive"), "alive\n");
}

#[test]
fn the_layer_of_a_container_with_an_unreadable_record_is_kept() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let file = daemon.env.state().join("pods").join(&pod.id).join("containers").join(&id).join("container.json");
    let text = fs::read_to_string(&file).unwrap();
    daemon.kill9();
    fs::write(&file, text.replacen("\"version\":2", "\"version\":3", 1)).unwrap();
    daemon.revive();
    assert!(daemon.env.root().join("containers").join(&id).join("upper").is_dir());
    assert_eq!(daemon.client().try_exec(&id, &["true"], 0).unwrap_err().code(), tonic::Code::FailedPrecondition);
    daemon.kill9();
    fs::write(&file, text).unwrap();
    daemon.revive();
    assert_eq!(daemon.client().exec_script(&id, "ls /bin > /dev/null; echo alive"), "alive\n");
}

#[test]
fn a_container_that_exits_during_its_creation_is_exited_and_removable() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for round in 0..10 {
        let id = client.create(&pod, &format!("main-{round}"), &["true"]);
        kill(daemon.pids(&id)[0], Signal::KILL);
        client.wait_exited(&id);
        client.remove(&id).unwrap();
    }
}

#[test]
fn the_shim_is_not_in_the_memory_cgroup_of_its_containers() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let shim = daemon.shims()[0];
    let mut config = container("main", &["sh", "-c", "x=$(yes | head -c 200000000); echo $x"]);
    let resources = v1::LinuxContainerResources { memory_limit_in_bytes: 32 << 20, ..Default::default() };
    config.linux.as_mut().unwrap().resources = Some(resources);
    let ended = client.finish_config(&pod, config);
    assert_eq!((ended.status.exit_code, ended.status.reason.as_str()), (137, "OOMKilled"));
    let cgroups = fs::read_to_string(format!("/proc/{shim}/cgroup")).unwrap();
    assert!(!cgroups.contains(daemon.env.cgroup()), "the shim is in the pod's cgroup:\n{cgroups}");
    // The OOM killer selects the shim late, and never before the daemon.
    let score =
        |pid: i32| -> i32 { fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap() };
    let held = u64::from_str_radix(&kernel_state::status(daemon.pid())["CapEff"], 16).unwrap();
    let may_lower = held & (1 << 24) != 0;
    assert!(if may_lower { score(shim) == -998 } else { score(shim) <= score(daemon.pid()) });
    wait_for("the pod to go on", seconds(5), || {
        (client.pod_status(&pod.id).state() == PodSandboxState::SandboxReady && kernel_state::is_alive(shim))
            .then_some(())
    });
    assert_eq!(client.script(&pod, "after", "echo fine").stdout, "fine\n");
}

#[test]
fn a_command_times_out_also_with_a_stopped_shim() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let shim = shim_of(&daemon, &pod.id);
    kill(shim, Signal::STOP);
    let begin = Instant::now();
    let refusal = daemon.client().try_exec(&id, &["touch", "/tmp/late"], 1).unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::DeadlineExceeded, "{refusal:?}");
    assert!(begin.elapsed() < seconds(60));
    kill(shim, Signal::CONT);
    assert_eq!(daemon.client().exec_script(&id, "echo alive"), "alive\n");
}

#[test]
fn stray_signals_do_not_end_a_shim() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let shim = daemon.shims()[0];
    for signal in [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::QUIT, Signal::VTALARM, Signal::XFSZ, Signal::TERM]
    {
        kill(shim, signal);
    }
    // A response arrives after the signals were handled.
    assert_eq!(client.exec_script(&id, "echo fine"), "fine\n");
    assert_eq!(daemon.shims(), [shim]);
}

#[test]
fn a_shim_has_no_epoll_watches() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    client.run_idle(&pod, "main");
    let files = std::fs::read_dir(format!("/proc/{}/fd", daemon.shims()[0])).unwrap().flatten();
    let open: Vec<_> = files.filter_map(|file| std::fs::read_link(file.path()).ok()).collect();
    assert!(!open.is_empty());
    assert!(!open.iter().any(|link| link.as_os_str() == "anon_inode:[eventpoll]"), "{open:?}");
}
