//! Tests of `hack/test-limit`, with a shell in the place of a test program.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const LIMIT: &str = "CRISP_TEST_LIMIT";

/// Runs `script` under the limit, in seconds.
fn run(script: &str, limit: u32) -> Output {
    let program = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../test-limit");
    Command::new(program).args(["sh", "-c", script]).env(LIMIT, limit.to_string()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts that the script was killed, in the name of `test`.
fn assert_killed(script: &str, limit: u32, test: &str) {
    let start = Instant::now();
    let output = run(script, limit);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(124), "{stdout}{stderr}");
    assert!(stderr.contains(&format!("test-limit: {test} runs longer than {limit} s")), "{stderr}");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[test]
fn output_and_exit_status_are_those_of_the_program() {
    for status in [0, 1, 101, 124] {
        let output = run(&format!("printf 'test a ... ok\\nend'; echo error >&2; exit {status}"), 5);
        assert_eq!(output.status.code(), Some(status));
        assert_eq!((text(&output.stdout), text(&output.stderr)), ("test a ... ok\nend".into(), "error\n".into()));
    }
    assert_eq!(run("kill -KILL $$", 5).status.code(), Some(128 + 9), "as a shell reports a signal");
}

#[test]
fn a_hanging_test_is_killed_with_its_children_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    let script =
        format!("sleep 1000 & echo $! >{}; printf 'test a::b ... ok\\ntest a::hangs ... '; wait", pid.display());
    assert_killed(&script, 1, "a::hangs");
    let child = std::fs::read_to_string(pid).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.trim())).unwrap_or_default();
    assert!(status.is_empty() || status.contains("State:\tZ"), "the child still runs: {status}");
}

#[test]
fn a_hanging_test_among_others_is_killed_and_named() {
    // The harness has several threads, so it prints the name only after 60 s.
    let slow = "test a::hangs has been running for over 60 seconds";
    let others = "while sleep 0.2; do echo 'test a::other ... ok'; done";
    assert_killed(&format!("echo '{slow}'; {others}"), 61, "a::hangs");
}

#[test]
fn tests_that_end_in_time_are_not_killed() {
    // Each ends in time, all together do not.
    let script = "for i in 1 2 3; do printf \"test slow_$i ... \"; sleep 1.1; echo ok; done; sleep 1.1";
    let output = run(script, 2);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "test slow_1 ... ok\ntest slow_2 ... ok\ntest slow_3 ... ok\n");
    assert_eq!(text(&output.stderr), "");
}
