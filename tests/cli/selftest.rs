//! `crisp check --live` and `crisp demo`: a pod of crisp's own program, gone afterwards whatever happens.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use rustix::process::Signal;

use super::{errors, text};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, kill, seconds, wait_for};

/// Nothing of a trial is left: no pod, no image, no directory; the harness asks the kernel for the rest.
fn assert_nothing_left(daemon: &Daemon) {
    wait_for("pods to go", seconds(30), || daemon.client().pods().is_empty().then_some(()));
    let images = || daemon.env.crisp(&["image", "ls", "-q", "--config"]).arg(daemon.env.config()).output().unwrap();
    wait_for("images to go", seconds(30), || (text(&images()).lines().count() == 1).then_some(()));
    let trials = || {
        let entries = std::fs::read_dir(daemon.env.state()).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("trial-")).count()
    };
    wait_for("directories to go", seconds(30), || (trials() == 0).then_some(()));
    daemon.env.wait_until_empty(Some(daemon.pid()));
}

/// Starts `check --live` and waits until it has made a step.
fn live_until(daemon: &Daemon, step: &str) -> Child {
    let mut command = daemon.env.verb("check", &["--live"]);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let found = lines.by_ref().map(Result::unwrap).any(|line| line.contains(step));
    assert!(found, "there was no step {step}");
    // What it prints later has to go somewhere.
    std::thread::spawn(move || lines.for_each(drop));
    process
}

#[test]
fn the_whole_path_is_proved_by_a_pod_that_is_gone_afterwards() {
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
fn the_step_that_fails_is_named_and_nothing_is_left() {
    for (point, step) in [("run_pod.cgroup", "run a pod"), ("create.launch", "create a container")] {
        let daemon = Daemon::with_failpoints(TestEnv::new(), &format!("{point}=fail"));
        let words = daemon.env.verb_fails("check", &["--live"]);
        assert!(words.contains(step) && words.contains(point), "{point}: {words}");
        let output = daemon.env.verb("check", &["--live", "--json"]).output().unwrap();
        let told: serde_json::Value = serde_json::from_str(&text(&output)).unwrap();
        let last = told["steps"].as_array().unwrap().last().unwrap();
        assert_eq!((&told["ok"], &last["step"], &last["ok"]), (&false.into(), &step.into(), &false.into()), "{told:#}");
        assert_nothing_left(&daemon);
    }
}

#[test]
fn an_interrupted_trial_clears_away_and_says_so() {
    let daemon = Daemon::start();
    let process = live_until(&daemon, "create a container");
    kill(i32::try_from(process.id()).unwrap(), Signal::INT);
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", errors(&output));
    assert!(errors(&output).contains("interrupted"), "{}", errors(&output));
    assert!(daemon.client().pods().is_empty());
    assert_nothing_left(&daemon);
}

#[test]
fn a_killed_trial_is_cleared_away_after() {
    let daemon = Daemon::start();
    let mut process = live_until(&daemon, "run a pod");
    process.kill().unwrap();
    process.wait().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn without_a_daemon_it_is_said_how_to_start_one() {
    let env = TestEnv::new();
    for (verb, arguments) in [("check", &["--live"][..]), ("demo", &[]), ("explain", &["x"]), ("resize", &["x"])] {
        let words = env.verb_fails(verb, arguments);
        assert!(words.contains("crisp serve") && words.contains("crisp.sock"), "{verb}: {words}");
    }
}

#[test]
fn the_demo_resizes_a_pod_that_lives_through_it() {
    let daemon = Daemon::start();
    let before = daemon.snapshot();
    let shown = daemon.env.verb_ok("demo", &[]);
    for words in ["→", "refused", "not restarted, 0 kills", "gone again"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert_nothing_left(&daemon);
    daemon.wait_until_like(&before);
}
