//! `crisp check`, with a daemon and without.

use std::fs;

use serde_json::Value;

use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, program};
use crate::support::kernel_state;

fn findings(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

fn finding<'a>(all: &'a Value, name: &str) -> &'a Value {
    let list = all["findings"].as_array().unwrap();
    list.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("finding {name} not found: {all:#}"))
}

fn names(env: &TestEnv) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(env.dir()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn check_passes_on_a_host_that_runs_pods_and_leaves_nothing() {
    let env = TestEnv::new();
    let (before, files) = (env.snapshot(None), names(&env));
    let found = findings(&env.verb_ok("check", &["--json"]));
    assert_eq!(found["can_run"], true, "{found:#}");
    for name in ["overlayfs", "cpu", "memory", "user", "seccomp"] {
        assert_eq!(finding(&found, name)["level"], "ok", "{found:#}");
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or_default());
    let enough = (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 3);
    assert_eq!(finding(&found, "kernel")["level"], if enough { "ok" } else { "warn" }, "{found:#}");
    for one in found["findings"].as_array().unwrap() {
        assert!(!one["what"].as_str().unwrap().is_empty(), "{one:#}");
        assert_eq!(one["level"] == "ok", one["hint"].is_null(), "every gap has a hint, and nothing else: {one:#}");
    }
    let version = finding(&found, "version")["what"].as_str().unwrap();
    assert!(version.starts_with(if kernel_state::is_v2() { "v2" } else { "v1" }), "{version}");
    env.wait_until_like(&before, None);
    assert_eq!(names(&env), files);
    assert_eq!(fs::read_dir(env.root()).unwrap().flatten().filter(|e| e.file_name() != "images").count(), 0);
}

#[test]
fn check_leaves_no_links_on_the_host() {
    let env = TestEnv::connected("");
    let before = env.links();
    let found = findings(&env.verb_ok("check", &["--json"]));
    assert_eq!(finding(&found, "built-in bridge")["level"], "ok", "{found:#}");
    assert_eq!(env.links(), before);
}

#[test]
fn check_fails_with_a_broken_cni_configuration() {
    let env = TestEnv::connected("");
    let conflist = r#"{"cniVersion":"1.0.0","name":"broken","plugins":[{"type":"no-such-plugin"}]}"#;
    fs::write(env.cni().join("10-broken.conflist"), conflist).unwrap();
    let words = env.verb_fails("check", &[]);
    assert!(words.contains("CNI"), "{words}");
}

#[test]
fn check_names_the_reason_why_pods_cannot_run_and_exits_with_1() {
    let env = TestEnv::new();
    let text = fs::read_to_string(env.config()).unwrap();
    let shim = format!("{:?}", program("crisp-shim"));
    fs::write(env.config(), text.replace(&shim, "\"/nonexistent/crisp-shim\"")).unwrap();
    let words = env.verb_fails("check", &[]);
    assert!(words.contains("crisp-shim"), "{words}");
    let output = env.verb("check", &["--json"]).output().unwrap();
    let found = findings(&super::text(&output));
    assert_eq!((output.status.code(), &found["can_run"]), (Some(1), &Value::Bool(false)));
    let file = finding(&found, "file");
    assert!(file["essential"] == true && file["what"].as_str().unwrap().contains("crisp-shim"), "{file:#}");
}

#[test]
fn check_reports_an_invalid_configuration() {
    let env = TestEnv::with_settings("colour = \"blue\"");
    let output = env.verb("check", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(super::text(&output).contains("colour"), "{}", super::text(&output));
}

#[test]
fn check_includes_a_running_daemon() {
    let daemon = Daemon::start();
    let found = findings(&daemon.env.verb_ok("check", &["--json"]));
    assert_eq!(finding(&found, "settings")["level"], "ok", "{found:#}");
    let ready = finding(&found, "RuntimeReady");
    assert_eq!(ready["level"], "ok", "{found:#}");
    let elsewhere = daemon.env.dir().join("elsewhere");
    let found = findings(&daemon.env.verb_ok("check", &["--json", "--state", elsewhere.to_str().unwrap()]));
    let settings = finding(&found, "settings");
    assert_eq!(settings["level"], "warn", "{found:#}");
    assert!(settings["what"].as_str().unwrap().contains("elsewhere"), "{settings:#}");
    assert!(!elsewhere.exists());
}
