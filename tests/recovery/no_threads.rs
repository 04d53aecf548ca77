//! A container that has used up all process ids: neither processes nor threads can be started.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cri_api::v1::ContainerState;
use tonic::Code;

use crate::support::client::container;
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds};
use crate::support::{cgroup_fixture, kernel_state};

/// A cgroup that holds a daemon, its shims and its pods, with a limit on its tasks.
struct Tasks {
    pids: PathBuf,
    leaf: PathBuf,
    daemon: i32,
}

impl Tasks {
    fn of(daemon: &Daemon) -> Self {
        cgroup_fixture::make(daemon.env.cgroup());
        let pids = kernel_state::cgroup_dir("pids", daemon.env.cgroup());
        // Without controllers for child cgroups: on v2 such a cgroup accepts no process.
        let leaf = pids.join("daemon");
        fs::create_dir(&leaf).unwrap();
        fs::write(leaf.join("cgroup.procs"), daemon.pid().to_string()).unwrap();
        Self { pids, leaf, daemon: daemon.pid() }
    }

    /// Permits `more` tasks than exist.
    fn limit(&self, more: usize) {
        let now: usize = fs::read_to_string(self.pids.join("pids.current")).unwrap().trim().parse().unwrap();
        fs::write(self.pids.join("pids.max"), (now + more).to_string()).unwrap();
    }

    /// Must be called after all pods are removed.
    fn remove(&self) {
        fs::write(self.pids.join("pids.max"), "max").unwrap();
        fs::write(self.pids.parent().unwrap().join("cgroup.procs"), self.daemon.to_string()).unwrap();
        fs::remove_dir(&self.leaf).unwrap();
    }
}

/// Forks until fork(2) fails; the children ignore SIGTERM.
const BOMB: &str = "trap '' TERM; (while :; do sleep 100000 & done) 2> /dev/null; echo full; exec sleep 100000";

#[test]
fn a_container_that_uses_all_pids_is_stopped_and_the_node_recovers() {
    let daemon = Daemon::on(TestEnv::new());
    let client = daemon.client();
    let tasks = Tasks::of(&daemon);
    let (pod, other) = (daemon.run_pod("pod"), daemon.run_pod("other"));
    let bystander = client.run_idle(&other, "bystander");
    let before = daemon.snapshot();
    tasks.limit(100);
    let bomb = client.run(&pod, "bomb", &["sh", "-c", BOMB]);
    client.wait_printed(&bomb, "full");
    // Idle threads of the daemon end, and other processes do not use their ids.
    std::thread::sleep(Duration::from_secs(10));
    tasks.limit(0);

    for _ in 0..4 {
        std::thread::sleep(Duration::from_secs(1));
        let refusal = client.try_run_pod(daemon.pod_config("late")).unwrap_err();
        assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
        let refusal = client.try_create(&other, container("late", &["true"])).unwrap_err();
        assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
        let refusal = client.try_exec(&bystander, &["true"], 5).unwrap_err();
        assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
    }
    assert_eq!(client.status(&bystander).state(), ContainerState::ContainerRunning);
    let begin = Instant::now();
    client.stop(&bomb, 1).unwrap();
    assert!(begin.elapsed() < seconds(15), "{:?}", begin.elapsed());
    assert_eq!(client.status(&bomb).exit_code, 137);
    client.remove(&bomb).unwrap();
    daemon.wait_until_like(&before);
    let log = daemon.env.read_log();
    assert!(!log.contains("panic"), "{log}");

    let again = client.run_idle(&other, "late");
    assert_eq!(client.exec_script(&again, "echo fine"), "fine\n");
    assert_eq!(client.exec_script(&bystander, "echo alive"), "alive\n");
    daemon.run_pod("late");
    client.remove_everything();
    tasks.remove();
}
