//! RunPodSandbox and CreateContainer fail, or the daemon is killed, at every step.

use tonic::Code;

use crate::support::client::container;
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;

/// Every failpoint of RunPodSandbox, in order.
pub(crate) const RUN_POD: [&str; 6] =
    ["run_pod.begin", "run_pod.intent", "run_pod.cgroup", "run_pod.shim", "run_pod.sandbox", "run_pod.network"];
/// Every failpoint of CreateContainer, in order.
pub(crate) const CREATE: [&str; 7] = [
    "create.begin",
    "create.intent",
    "create.layer",
    "create.volumes",
    "create.cgroup",
    "create.bundle",
    "create.launch",
];

/// The failpoints that the source has, as it was when this was compiled.
fn in_source(text: &str) -> Vec<&str> {
    let mut found: Vec<_> =
        text.split("failpoint::at(\"").skip(1).map(|rest| rest.split_once('"').unwrap().0).collect();
    found.sort_unstable();
    found
}

#[test]
fn the_tables_here_name_every_failpoint() {
    for (table, text) in [
        (RUN_POD.to_vec(), include_str!("../../src/daemon/runtime/pod/run.rs")),
        (CREATE.to_vec(), include_str!("../../src/daemon/runtime/container/create.rs")),
    ] {
        let mut table = table;
        table.sort_unstable();
        assert_eq!(in_source(text), table);
    }
}

#[test]
fn a_pod_that_fails_at_any_step_leaves_nothing() {
    for point in RUN_POD {
        let mut daemon = Daemon::with_failpoints(TestEnv::connected(""), &format!("{point}=fail"));
        let config = daemon.pod_config("pod");
        // Twice: the name of the first attempt is free again.
        for _ in 0..2 {
            let refusal = daemon.client().try_run_pod(config.clone()).unwrap_err();
            assert!(refusal.message().contains(point), "{point}: {refusal:?}");
            daemon.env.wait_until_empty(Some(daemon.pid()));
        }
        assert!(daemon.client().pods().is_empty());
        if point == RUN_POD[RUN_POD.len() - 1] {
            daemon.restart();
            assert!(daemon.client().pods().is_empty());
            daemon.run_pod("pod");
        }
    }
}

#[test]
fn a_daemon_killed_at_any_step_of_a_pod_leaves_nothing_after_its_restart() {
    for point in RUN_POD {
        let mut daemon = Daemon::with_failpoints(TestEnv::connected(""), &format!("{point}=kill"));
        daemon.client().try_run_pod(daemon.pod_config("pod")).unwrap_err();
        daemon.wait_ended();
        daemon.revive();
        daemon.env.wait_until_empty(Some(daemon.pid()));
        assert!(daemon.client().pods().is_empty(), "{point}");
        daemon.run_pod("pod");
    }
}

#[test]
fn a_container_that_fails_at_any_step_leaves_nothing() {
    for point in CREATE {
        let mut daemon = Daemon::with_failpoints(TestEnv::new(), &format!("{point}=fail"));
        let pod = daemon.run_pod("pod");
        let before = daemon.snapshot();
        for _ in 0..2 {
            let refusal = daemon.client().try_create(&pod, container("main", &["true"])).unwrap_err();
            assert!(refusal.message().contains(point), "{point}: {refusal:?}");
            daemon.wait_until_like(&before);
        }
        assert!(daemon.client().containers().is_empty());
        if point == CREATE[CREATE.len() - 1] {
            daemon.restart();
            assert!(daemon.client().containers().is_empty());
            daemon.wait_until_like(&before);
            assert_eq!(daemon.client().script(&pod, "main", "echo fine").stdout, "fine\n");
        }
    }
}

#[test]
fn a_daemon_killed_at_any_step_of_a_container_leaves_nothing_after_its_restart() {
    for point in CREATE {
        let mut daemon = Daemon::with_failpoints(TestEnv::new(), &format!("{point}=kill"));
        let pod = daemon.run_pod("pod");
        let before = daemon.snapshot();
        let refusal = daemon.client().try_create(&pod, container("main", &["true"])).unwrap_err();
        assert_ne!(refusal.code(), Code::Internal, "{point}: the daemon answered {refusal:?}");
        daemon.wait_ended();
        daemon.revive();
        daemon.wait_until_like(&before);
        assert!(daemon.client().containers().is_empty(), "{point}");
        assert_eq!(daemon.client().script(&pod, "main", "echo fine").stdout, "fine\n");
    }
}

#[test]
fn a_failed_pod_leaves_the_kubelets_cgroup_unchanged() {
    for action in ["fail", "kill"] {
        let env = TestEnv::new();
        let parent = env.pod_cgroup("given");
        let before = env.snapshot(None);
        let mut daemon = Daemon::with_failpoints(env, &format!("run_pod.sandbox={action}"));
        let mut config = daemon.pod_config("pod");
        config.linux.as_mut().unwrap().cgroup_parent = parent.clone();
        daemon.client().try_run_pod(config).unwrap_err();
        if action == "kill" {
            daemon.wait_ended();
            daemon.revive();
        }
        daemon.wait_until_like(&before);
        daemon.env.remove_pod_cgroup(&parent);
    }
}
