//! Daemons that crash and steps that fail leave nothing of pods with user namespaces.

use tonic::Code;

use super::{FIRST, idle, ids, inside, mapped, run_pod, script};
use crate::recovery::failpoints::{CREATE, RUN_POD};
use crate::support::client::pod_namespaces;
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, times};
use crate::support::kernel_state;

#[test]
fn a_pod_with_a_user_namespace_survives_a_restart_of_the_daemon() {
    let mut daemon = Daemon::start();
    let pod = run_pod(&daemon, "pod");
    let client = daemon.client();
    let running = client.run_config(&pod, idle("running"));
    let created = client.try_create(&pod, script("created", "id -u; cat /proc/self/uid_map")).unwrap();
    let (pids, told) = (daemon.pids(&running), client.pod_status(&pod.id));
    daemon.restart();
    let client = daemon.client();
    assert_eq!((daemon.pids(&running), client.pod_status(&pod.id)), (pids, told));
    assert_eq!(client.exec_script(&running, "id -u"), "0\n");
    client.start(&created).unwrap();
    assert_eq!(client.wait_exited(&created).exit_code, 0);
    assert!(client.lines(&created)[1].text.contains("65536"), "{:?}", client.lines(&created));
    let late = client.run_config(&pod, idle("late"));
    assert!(kernel_state::status(daemon.pids(&late)[0])["Uid"].starts_with(&FIRST.to_string()));
    client.stop(&running, 10).unwrap();
    assert_eq!(client.status(&running).exit_code, 0);
}

#[test]
fn pods_interrupted_at_any_step_leave_nothing() {
    for point in RUN_POD.into_iter().step_by(times(1, 4)) {
        for action in ["fail", "kill"] {
            let mut daemon = Daemon::with_failpoints(TestEnv::new(), &format!("{point}={action}"));
            let mut config = daemon.pod_config("pod");
            let spaces = pod_namespaces(&mut config);
            spaces.userns_options = Some(mapped(ids()));
            spaces.pid = cri_api::v1::NamespaceMode::Pod.into();
            daemon.client().try_run_pod(config).unwrap_err();
            if action == "kill" {
                daemon.wait_ended();
                daemon.revive();
            }
            daemon.env.wait_until_empty(Some(daemon.pid()));
            assert!(daemon.client().pods().is_empty(), "{point}");
        }
    }
}

#[test]
fn containers_interrupted_at_any_step_leave_nothing() {
    for point in CREATE.into_iter().step_by(times(1, 4)) {
        for action in ["fail", "kill"] {
            let mut daemon = Daemon::with_failpoints(TestEnv::new(), &format!("{point}={action}"));
            let pod = run_pod(&daemon, "pod");
            let before = daemon.snapshot();
            let refusal = daemon.client().try_create(&pod, inside("main", &["true"])).unwrap_err();
            if action == "kill" {
                assert_ne!(refusal.code(), Code::Internal, "{point}: the daemon answered {refusal:?}");
                daemon.wait_ended();
                daemon.revive();
            }
            daemon.wait_until_like(&before);
            assert!(daemon.client().containers().is_empty(), "{point}");
        }
    }
}

#[test]
fn a_failed_launch_leaves_nothing_and_reports_the_reason() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let before = daemon.snapshot();
    let mut config = idle("main");
    config.working_dir = "/etc/passwd/below".into();
    let refusal = client.try_create(&pod, config).unwrap_err();
    assert!(refusal.message().contains("working directory /etc/passwd/below"), "{refusal:?}");
    daemon.wait_until_like(&before);
    let id = client.try_create(&pod, inside("missing", &["/no/program"])).unwrap();
    let refusal = client.start(&id).unwrap_err();
    assert!(refusal.message().contains("\"/no/program\": no such file or directory"), "{refusal:?}");
    client.remove(&id).unwrap();
    daemon.wait_until_like(&before);
}

#[test]
fn many_pods_leave_nothing_after_their_removal() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let before = (daemon.snapshot(), kernel_state::holding(daemon.pid()).fds);
    for number in 0..times(15, 2) {
        let pod = run_pod(&daemon, &format!("pod-{number}"));
        assert_eq!(client.finish_config(&pod, script("main", "id -u")).stdout, "0\n");
        client.stop_pod(&pod.id).unwrap();
        client.remove_pod(&pod.id).unwrap();
    }
    daemon.wait_until_like(&before.0);
    let fds = kernel_state::holding(daemon.pid()).fds;
    assert!(fds <= before.1 + 2, "{fds} descriptors, {} before", before.1);
}
