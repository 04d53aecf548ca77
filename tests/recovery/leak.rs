//! Many pods, containers and commands leave no kernel objects, memory or descriptors.

use std::sync::atomic::{AtomicUsize, Ordering};

use cri_api::v1;

use crate::support::client::{Client, container, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds, times, wait_for};
use crate::support::kernel_state;

/// Runs `count` pods with a container each, a few at a time, and leaves them running.
fn start_pods(daemon: &Daemon, count: usize) {
    let next = AtomicUsize::new(0);
    let socket = daemon.env.socket();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let client = Client::connect(&socket);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let pod = client.run_pod_of(daemon.pod_config(&format!("pod-{number}")));
                    client.run_config(&pod, container("main", &["sleep", "100000"]));
                }
            });
        }
    });
}

fn remove_pods(daemon: &Daemon) {
    let pods = daemon.client().pods();
    let socket = daemon.env.socket();
    std::thread::scope(|threads| {
        for part in pods.chunks(pods.len().div_ceil(4)) {
            let socket = &socket;
            threads.spawn(move || {
                let client = Client::connect(socket);
                for pod in part {
                    client.stop_pod(&pod.id).unwrap();
                    client.remove_pod(&pod.id).unwrap();
                }
            });
        }
    });
}

#[test]
fn many_pods_leave_nothing_in_the_kernel_and_nothing_in_the_daemon() {
    let daemon = Daemon::on(TestEnv::connected(""));
    let (few, many) = (times(20, 8), times(200, 20));
    // The first pods create objects that stay: threads, buffers, arenas of the allocator.
    for _ in 0..times(2, 1) {
        start_pods(&daemon, few);
        assert_eq!(daemon.client().containers().len(), few);
        remove_pods(&daemon);
    }
    daemon.env.wait_until_empty(Some(daemon.pid()));
    settle(&daemon, None);
    let before = kernel_state::holding(daemon.pid());

    start_pods(&daemon, many);
    assert_eq!((daemon.client().pods().len(), daemon.client().containers().len()), (many, many));
    assert_eq!(daemon.shims().len(), many);
    let peak = kernel_state::holding(daemon.pid());
    remove_pods(&daemon);
    daemon.env.wait_until_empty(Some(daemon.pid()));
    settle(&daemon, Some(before));
    let after = kernel_state::holding(daemon.pid());
    assert!(after.fds <= before.fds, "descriptors: {before:?}, then {after:?}");
    assert!(after.threads <= before.threads, "threads: {before:?}, then {after:?}");
    assert!(after.rss * 10 <= before.rss * 11, "memory: {before:?}, {peak:?} at most, then {after:?}");
}

/// Waits until the daemon has released the memory of a burst of work.
fn settle(daemon: &Daemon, goal: Option<kernel_state::Holding>) {
    match goal {
        None => std::thread::sleep(seconds(3)),
        Some(goal) => wait_for("the daemon to be as it was", seconds(15), || {
            let now = kernel_state::holding(daemon.pid());
            (now.fds <= goal.fds && now.threads <= goal.threads).then_some(())
        }),
    }
}

#[test]
fn many_containers_in_one_pod_leave_nothing_in_its_shim() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let round = |name: &str| {
        let ended = client.script(&pod, name, "echo some output");
        client.remove(&ended.id).unwrap();
        client.remove(&client.create(&pod, name, &["true"])).unwrap();
    };
    round("first");
    let snapshot = daemon.snapshot();
    let shim = daemon.shims()[0];
    let before = kernel_state::holding(shim);
    for _ in 0..times(50, 5) {
        round("main");
    }
    daemon.wait_until_like(&snapshot);
    let after = kernel_state::holding(shim);
    assert_eq!((after.fds, after.threads), (before.fds, before.threads));
    assert!(after.anonymous <= before.anonymous + 256, "memory: {before:?}, then {after:?}");
}

#[test]
fn many_commands_leave_nothing_in_the_shim_and_the_daemon() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let round = || {
        assert_eq!(client.exec_script(&id, "echo some output"), "some output\n");
        client.try_exec(&id, &["no-such-program"], 0).unwrap_err();
    };
    round();
    let shim = daemon.shims()[0];
    // Until the shim has released the last command.
    let held = || (kernel_state::holding(shim).fds, kernel_state::holding(daemon.pid()).fds);
    wait_for("two equal looks", seconds(10), || {
        let one = held();
        std::thread::sleep(std::time::Duration::from_millis(200));
        (held() == one).then_some(())
    });
    let snapshot = daemon.snapshot();
    let before = (kernel_state::holding(shim), kernel_state::holding(daemon.pid()).fds);
    for _ in 0..times(100, 5) {
        round();
    }
    daemon.wait_until_like(&snapshot);
    wait_for("descriptors to be as before", seconds(10), || (held() <= (before.0.fds, before.1)).then_some(()));
    let after = (kernel_state::holding(shim), kernel_state::holding(daemon.pid()).fds);
    assert_eq!((after.0.fds, after.0.threads, after.1), (before.0.fds, before.0.threads, before.1));
    assert!(after.0.anonymous <= before.0.anonymous + 256, "memory: {before:?}, then {after:?}");
}

#[test]
fn a_container_with_very_deep_directories_can_be_removed() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // No path can name the lowest of them: 20 000 in chains of 900, each moved to the end of the
    // next.
    let chains = times(22, 8);
    let script = format!(
        "cd /tmp; chain=$(for i in $(seq 900); do printf d/; done); mkdir 0; for i in $(seq {chains}); do \
         mkdir -p $i/$chain && busybox mv $((i - 1)) $i/$chain && echo $i || exit; done"
    );
    let mut config = container("main", &["sh", "-c", &script]);
    security(&mut config).run_as_user = Some(v1::Int64Value { value: 1000 });
    let id = client.run_config(&pod, config);
    // Every directory is written to a disk that others may use.
    (1..=chains).for_each(|number| client.wait_printed(&id, &number.to_string()));
    assert_eq!(client.wait_exited(&id).exit_code, 0);
    client.remove_pod(&pod.id).unwrap();
    daemon.env.wait_until_empty(Some(daemon.pid()));
    let pod = daemon.run_pod("other");
    assert_eq!(client.script(&pod, "main", "echo fine").stdout, "fine\n");
}
