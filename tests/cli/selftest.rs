//! `crisp check --live` and `crisp demo`: the selftest's objects are removed in any case.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use rustix::process::Signal;

use super::{errors, text};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, kill, seconds, wait_for};

/// Checks that no pod, image or directory of a selftest is left; the harness checks the kernel's objects.
fn assert_nothing_left(daemon: &Daemon) {
    wait_for("removal of pods", seconds(30), || daemon.client().pods().is_empty().then_some(()));
    let images = || daemon.env.crisp(&["image", "ls", "-q", "--config"]).arg(daemon.env.config()).output().unwrap();
    wait_for("removal of images", seconds(30), || (text(&images()).lines().count() == 1).then_some(()));
    let trials = || {
        let entries = std::fs::read_dir(daemon.env.state()).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("trial-")).count()
    };
    wait_for("removal of directories", seconds(30), || (trials() == 0).then_some(()));
    daemon.env.wait_until_empty(Some(daemon.pid()));
}

/// Starts `check --live` and waits for a step.
fn live_until(daemon: &Daemon, step: &str) -> Child {
    let mut command = daemon.env.verb("check", &["--live"]);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let found = lines.by_ref().map(Result::unwrap).any(|line| line.contains(step));
    assert!(found, "step {step} not found");
    // Drains the pipe, so that the process does not block or get SIGPIPE.
    std::thread::spawn(move || lines.for_each(drop));
    process
}

#[test]
fn check_live_runs_all_steps_and_leaves_nothing() {
    let daemon = Daemon::start();
    let before = daemon.snapshot();
    let output = daemon.env.verb_ok("check", &["--live"]);
    for step in ["import", "run a pod", "create", "start", "exec", "resize it up", "resize it down", "stop", "remove"] {
        assert!(output.lines().any(|line| line.contains("ok") && line.contains(step)), "{step}: {output}");
    }
    assert_nothing_left(&daemon);
    daemon.wait_until_like(&before);
}

#[test]
fn a_failed_step_is_named_and_nothing_is_left() {
    for (point, step) in [("run_pod.cgroup", "run a pod"), ("create.launch", "create a container")] {
        let daemon = Daemon::with_failpoints(TestEnv::new(), &format!("{point}=fail"));
        let words = daemon.env.verb_fails("check", &["--live"]);
        assert!(words.contains(step) && words.contains(point), "{point}: {words}");
        let output = daemon.env.verb("check", &["--live", "--json"]).output().unwrap();
        let report: serde_json::Value = serde_json::from_str(&text(&output)).unwrap();
        let last = report["steps"].as_array().unwrap().last().unwrap();
        let expected = (&false.into(), &step.into(), &false.into());
        assert_eq!((&report["ok"], &last["step"], &last["ok"]), expected, "{report:#}");
        assert_nothing_left(&daemon);
    }
}

#[test]
fn an_interrupted_selftest_cleans_up_and_reports_it() {
    let daemon = Daemon::start();
    let process = live_until(&daemon, "create a container");
    kill(i32::try_from(process.id()).unwrap(), Signal::INT);
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", errors(&output));
    assert!(errors(&output).contains("interrupted; its test pod and image were removed"), "{}", errors(&output));
    assert!(daemon.client().pods().is_empty());
    assert_nothing_left(&daemon);
}

#[test]
fn a_killed_selftest_is_cleaned_up() {
    let daemon = Daemon::start();
    let mut process = live_until(&daemon, "run a pod");
    process.kill().unwrap();
    process.wait().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn commands_without_a_daemon_name_the_command_to_start_one() {
    let env = TestEnv::new();
    for (verb, arguments) in [("check", &["--live"][..]), ("demo", &[]), ("explain", &["x"]), ("resize", &["x"])] {
        let words = env.verb_fails(verb, arguments);
        assert!(words.contains("crisp serve") && words.contains("crisp.sock"), "{verb}: {words}");
    }
}

#[test]
fn the_demo_resizes_a_running_pod() {
    let daemon = Daemon::start();
    let before = daemon.snapshot();
    let shown = daemon.env.verb_ok("demo", &[]);
    for words in ["→", "refused", "0 restarts, 0 OOM kills", "were removed"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert_nothing_left(&daemon);
    daemon.wait_until_like(&before);
}
