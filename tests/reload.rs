//! A configuration that changes while the daemon runs.

use std::fs;
use std::time::Instant;

use rustix::process::Signal;

use crate::harness::{Daemon, kill, seconds, wait_for};

/// Writes other settings into the daemon's file: `old` becomes `new`.
fn change(daemon: &Daemon, old: &str, new: &str) {
    let text = fs::read_to_string(daemon.ground.config()).unwrap();
    assert!(text.contains(old), "{text}");
    let aside = daemon.ground.dir().join("aside");
    fs::write(&aside, text.replace(old, new)).unwrap();
    fs::rename(aside, daemon.ground.config()).unwrap();
}

fn wait_logged(daemon: &Daemon, words: &[&str]) -> String {
    wait_for(&format!("a line with {words:?}"), seconds(20), || {
        let log = daemon.ground.read_log();
        log.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
    })
}

const STUBBORN: [&str; 3] = ["sh", "-c", "trap '' TERM; echo idle; while :; do sleep 1; done"];

#[test]
fn a_signal_brings_new_settings_into_force_and_names_those_that_wait() {
    let daemon = Daemon::with_settings("[stop]\ngrace_max = 86400\n[log]\nlevel = \"info\"\nformat = \"text\"");
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "main", &STUBBORN);
    client.wait_printed(&id, "idle");
    kill(daemon.pid(), Signal::HUP);
    wait_logged(&daemon, &["INFO", "has not changed"]);
    change(&daemon, "grace_max = 86400", "grace_max = 1");
    change(&daemon, "level = \"info\"", "level = \"debug\"");
    change(&daemon, "format = \"text\"", "format = \"json\"");
    kill(daemon.pid(), Signal::HUP);
    wait_logged(&daemon, &["INFO", "in force", "log.level", "stop"]);
    wait_logged(&daemon, &["WARN", "restart", "log.format"]);
    // A look is logged at debug.
    assert!(!daemon.ground.read_log().contains("name=\"Version\""));
    let version = wire::v1::VersionRequest::default();
    client.call(|mut c| async move { c.version(version).await }).unwrap();
    wait_logged(&daemon, &["DEBUG", "name=\"Version\"", "done"]);
    let begin = Instant::now();
    client.stop(&id, 3600).unwrap();
    assert!(begin.elapsed() < seconds(20), "the longest grace is a second now: {:?}", begin.elapsed());
}

#[test]
fn a_changed_file_is_seen_without_a_signal_and_a_bad_one_changes_nothing() {
    let daemon = Daemon::with_settings("[stop]\ngrace_max = 86400");
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "main", &STUBBORN);
    client.wait_printed(&id, "idle");
    change(&daemon, "grace_max = 86400", "grace_max = 1\npassword = \"swordfish99\"");
    let line = wait_logged(&daemon, &["WARN", "last good one", "crisp.toml", "password"]);
    assert!(!line.contains("swordfish99"), "{line}");
    assert_eq!(daemon.ground.read_log().matches("last good one").count(), 1, "told once");
    change(&daemon, "\npassword = \"swordfish99\"", "");
    wait_logged(&daemon, &["INFO", "in force", "stop"]);
    let begin = Instant::now();
    client.stop(&id, 3600).unwrap();
    assert!(begin.elapsed() < seconds(20), "{:?}", begin.elapsed());
    let log = daemon.ground.read_log();
    assert!(!log.contains("swordfish99"));
}
