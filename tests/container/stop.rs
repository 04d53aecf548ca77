//! Stopping: the signal, the time, the kill.

use std::time::Instant;

use cri_api::v1;
use serde_json::json;

use crate::support::client::{container, namespaces, pod_namespaces, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::image_fixture::Archive;
use crate::support::kernel_state;

#[test]
fn a_container_that_handles_the_stop_signal_exits_by_itself() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(
        &pod,
        "main",
        &["sh", "-c", "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 1000 & wait; done"],
    );
    client.wait_printed(&id, "up");
    let begin = Instant::now();
    client.stop(&id, 60).unwrap();
    assert!(begin.elapsed() < seconds(10), "{:?}", begin.elapsed());
    let status = client.status(&id);
    assert_eq!((status.state(), status.exit_code), (v1::ContainerState::ContainerExited, 5));
    assert_eq!(client.lines(&id).last().unwrap().text, "bye");
}

#[test]
fn a_container_that_ignores_the_stop_signal_is_killed_after_the_timeout() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let script = "trap '' TERM; (trap '' TERM; setsid sleep 1000) & echo up; while :; do sleep 1000 & wait; done";
    let id = client.run(&pod, "main", &["sh", "-c", script]);
    client.wait_printed(&id, "up");
    let pids = daemon.pids(&id);
    assert!(pids.len() >= 2, "{pids:?}");
    let begin = Instant::now();
    client.stop(&id, 2).unwrap();
    assert!(begin.elapsed().as_secs() >= 2, "killed after {:?}", begin.elapsed());
    let status = client.status(&id);
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "Error"));
    wait_for("all its processes to go", seconds(2), || {
        pids.iter().all(|pid| !kernel_state::is_alive(*pid)).then_some(())
    });
}

#[test]
fn a_timeout_of_zero_kills_at_once() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(
        &pod,
        "main",
        &["sh", "-c", "trap 'echo handled; exit 0' TERM; echo up; while :; do sleep 1000 & wait; done"],
    );
    client.wait_printed(&id, "up");
    client.stop(&id, 0).unwrap();
    assert_eq!(client.status(&id).exit_code, 137);
    assert_eq!(client.lines(&id).len(), 1);
}

#[test]
fn a_kill_in_a_shared_pid_namespace_includes_children_of_the_first_process() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| *pod_namespaces(config) = namespaces(v1::NamespaceMode::Pod));
    let mut config = container("main", &["sh", "-c", "setsid sleep 1000 & echo up; exec sleep 1000"]);
    security(&mut config).namespace_options = Some(namespaces(v1::NamespaceMode::Pod));
    let id = client.run_config(&pod, config);
    client.wait_printed(&id, "up");
    let pids = wait_for("both to run", seconds(5), || Some(daemon.pids(&id)).filter(|pids| pids.len() == 2));
    client.stop(&id, 0).unwrap();
    wait_for("all its processes to go", seconds(2), || {
        pids.iter().all(|pid| !kernel_state::is_alive(*pid)).then_some(())
    });
}

#[test]
fn the_stop_signal_is_that_of_the_request_or_of_the_image_or_term() {
    let env = TestEnv::new();
    env.import(&Archive::new("crisp.test/stop:1").with("StopSignal", json!("SIGUSR1")));
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let script =
        "for s in TERM USR1 USR2; do trap \"echo $s; exit 0\" $s; done; echo up; while :; do sleep 1000 & wait; done";
    for (name, image, asked, heard) in [
        ("plain", None, v1::Signal::RuntimeDefault, "TERM"),
        ("image", Some("crisp.test/stop:1"), v1::Signal::RuntimeDefault, "USR1"),
        ("request", Some("crisp.test/stop:1"), v1::Signal::Sigusr2, "USR2"),
    ] {
        let mut config = container(name, &["sh", "-c", script]);
        config.stop_signal = asked.into();
        if let Some(image) = image {
            config.image.as_mut().unwrap().image = image.into();
        }
        let id = client.run_config(&pod, config);
        client.wait_printed(&id, "up");
        assert_eq!(client.status(&id).stop_signal().as_str_name(), format!("SIGNAL_SIG{heard}"));
        client.stop(&id, 60).unwrap();
        assert_eq!(client.lines(&id).last().unwrap().text, heard, "{name}");
    }
}

#[test]
fn concurrent_stops_both_succeed() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "main", &["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1000 & wait; done"]);
    client.wait_printed(&id, "up");
    let socket = daemon.env.socket();
    std::thread::scope(|threads| {
        for grace in [2, 1] {
            let (socket, id) = (&socket, &id);
            threads.spawn(move || crate::support::client::Client::connect(socket).stop(id, grace).unwrap());
        }
    });
    assert_eq!(client.status(&id).exit_code, 137);
}

#[test]
fn a_status_does_not_wait_for_a_slow_stop() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "main", &["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1000 & wait; done"]);
    client.wait_printed(&id, "up");
    let socket = daemon.env.socket();
    std::thread::scope(|threads| {
        let stopping = threads.spawn(|| crate::support::client::Client::connect(&socket).stop(&id, 3).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(500));
        let begin = Instant::now();
        assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerRunning);
        assert_eq!((client.containers().len(), client.pods().len()), (1, 1));
        assert!(begin.elapsed() < seconds(1), "{:?}", begin.elapsed());
        stopping.join().unwrap();
    });
}

#[test]
fn a_container_stopped_before_its_start_can_be_started() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.create(&pod, "main", &["sh", "-c", "echo late; exit 9"]);
    for grace in [0, 5] {
        client.stop(&id, grace).unwrap();
        assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerCreated, "after a stop with grace {grace}");
    }
    client.start(&id).unwrap();
    assert_eq!(client.wait_exited(&id).exit_code, 9);
    // Removing the pod also stops a container that was never started.
    let never = client.create(&pod, "never", &["true"]);
    client.stop_pod(&pod.id).unwrap();
    assert_eq!(client.status(&never).state(), v1::ContainerState::ContainerExited);
    wait_for("its process to go", seconds(2), || daemon.pids(&never).is_empty().then_some(()));
}
