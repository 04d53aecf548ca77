//! The OOM score of a container's processes.

use super::*;
use crate::support::harness::{seconds, wait_for};

/// Returns the score of a process; `None` if it has exited.
fn score(pid: i32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?.trim().to_owned())
}

fn with_score(score: i64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources { oom_score_adj: score, ..limits(500, 64) }
}

#[test]
fn a_new_score_applies_to_processes_with_the_old_one_and_to_later_ones() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", with_score(300));
    client.exec_script(&id, "sleep 1000 > /dev/null 2>&1 &");
    client.exec_script(&id, "echo 700 > /proc/self/oom_score_adj; sleep 1000 > /dev/null 2>&1 &");
    let scores = || {
        let mut scores: Vec<String> = daemon.pids(&id).into_iter().filter_map(score).collect();
        scores.sort();
        scores
    };
    // The processes that started the commands exit meanwhile.
    wait_for("three processes", seconds(10), || (scores() == ["300", "300", "700"]).then_some(()));
    client.update(&id, with_score(500)).unwrap();
    assert_eq!(scores(), ["500", "500", "700"], "a process that changed its own score keeps it");
    assert_eq!(client.in_force(&id).oom_score_adj, 500);
    assert_eq!(client.exec_script(&id, "cat /proc/self/oom_score_adj"), "500\n");
    // As the CPU manager requests: only a cpuset.
    let cpuset = v1::LinuxContainerResources { cpuset_cpus: "0".into(), ..Default::default() };
    client.update(&id, cpuset).unwrap();
    assert_eq!(scores(), ["500", "500", "700"]);
}

/// Whether this machine lets root lower a score.
fn may_lower() -> bool {
    let lowered = std::process::Command::new("sh")
        .args(["-c", "echo -500 > /proc/self/oom_score_adj"])
        .stderr(std::process::Stdio::null())
        .status();
    lowered.unwrap().success()
}

#[test]
fn a_score_that_cannot_be_set_is_a_warning_or_an_error_by_setting() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", with_score(300));
    client.update(&id, v1::LinuxContainerResources { oom_score_adj: -500, ..limits(700, 64) }).unwrap();
    assert_eq!(client.in_force(&id).cpu_quota, 70_000);
    let expected = if may_lower() { -500 } else { 300 };
    assert_eq!(client.in_force(&id).oom_score_adj, expected, "the value in the kernel, not the requested one");

    let daemon = Daemon::with_settings("[container]\noom_score_adj = \"require\"");
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", with_score(300));
    let outcome = client.update(&id, v1::LinuxContainerResources { oom_score_adj: -500, ..limits(700, 96) });
    if may_lower() {
        outcome.unwrap();
        assert_limits(&daemon, &id, 700, 96);
    } else {
        let refusal = outcome.unwrap_err();
        assert_eq!(refusal.code(), tonic::Code::FailedPrecondition, "{refusal:?}");
        assert!(refusal.message().contains("oom_score_adj"), "{refusal:?}");
        assert_limits(&daemon, &id, 500, 64);
    }
}
