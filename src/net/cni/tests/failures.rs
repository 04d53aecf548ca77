//! Plugins that fail, hang, or return invalid output.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use model::{ErrorClass as _, ErrorKind};
use serde_json::json;

use super::support::{RESULT, TestEnv, pod, slow, words};
use crate::cni::{AddError, PluginError};

/// The script of a plugin that fails at `ADD` only.
fn at_add(script: &str) -> String {
    format!("if [ $CNI_COMMAND = ADD ]; then {script}\nfi")
}

/// Returns the error of an ADD whose second plugin runs `script`.
async fn failed(env: &TestEnv, script: &str) -> (AddError, String) {
    env.good("first");
    env.plugin("second", &at_add(script));
    env.list(&[("first", json!({})), ("second", json!({})), ("third", json!({}))]);
    env.good("third");
    let error = env.cni.add(&pod("p1")).await.unwrap_err();
    let output = words(&error);
    let calls = ["ADD first", "ADD second", "DEL third", "DEL second", "DEL first"];
    assert_eq!(env.calls(), calls, "all plugins receive DEL: {output}");
    assert!(env.cached().is_empty(), "{output}");
    assert!(output.contains("second") && output.contains("net"), "{output}");
    (error, output)
}

fn plugin(error: &AddError) -> &PluginError {
    match error {
        AddError::Plugin { source, .. } => source,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_plugin_that_fails_after_allocating_receives_del() {
    let env = TestEnv::new();
    let allocated = env.path("allocated").display().to_string();
    let output = r#"{"cniVersion": "1.0.0", "code": 7, "msg": "no way", "details": "really\nnone"}"#;
    let script = format!(
        "touch {allocated}; echo first line >&2; printf 'last\\033[2J line' >&2; printf '%s' '{output}'; exit 1"
    );
    env.good("first");
    let second = format!("{}\nif [ $CNI_COMMAND = DEL ]; then rm {allocated}; fi", at_add(&script));
    env.plugin("second", &second);
    env.list(&[("first", json!({})), ("second", json!({}))]);
    let error = env.cni.add(&pod("p1")).await.unwrap_err();
    assert!(matches!(plugin(&error), PluginError::Refused { code: 7, .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Precondition);
    let output = words(&error);
    assert!(output.contains("refused ADD: no way; really none (code 7)"), "{output}");
    assert!(output.ends_with("its stderr ends in: first line last [2J line"), "{output}");
    assert!(!Path::new(&allocated).exists());
    assert_eq!(env.calls(), ["ADD first", "ADD second", "DEL second", "DEL first"]);
    assert_eq!(env.stdin_of("second", "DEL").get("prevResult"), None, "there is no result of the whole");
    assert!(env.cached().is_empty());
}

#[tokio::test]
async fn a_failed_del_after_a_failed_add_is_reported_and_keeps_the_record() {
    let mut env = TestEnv::new();
    env.plugin("bridge", "echo \"bad $CNI_COMMAND\" >&2; exit 3");
    env.list(&[("bridge", json!({ "mark": 1 }))]);
    let error = env.cni.add(&pod("p1")).await.unwrap_err();
    assert!(matches!(&error, AddError::LeftBehind { .. }), "{error}");
    let output = words(&error);
    for part in ["failed in ADD with exit code 3", "bad ADD", "failed in DEL with exit code 3", "bad DEL"] {
        assert!(output.contains(part), "{output}");
    }
    assert_eq!(env.cni.attachments().unwrap(), ["p1"]);
    // After a restart, with another configured network.
    env.restart();
    env.good("bridge");
    env.list(&[("bridge", json!({ "mark": 2 }))]);
    env.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(env.stdin_of("bridge", "DEL")["mark"], 1);
    assert!(env.cached().is_empty());
}

#[tokio::test]
async fn a_plugin_that_rejects_its_configuration_does_not_prevent_del_of_the_others() {
    let env = TestEnv::new();
    env.good("first");
    env.plugin("second", "echo unknown field >&2; exit 1");
    env.list(&[("first", json!({})), ("second", json!({ "typo": 1 }))]);
    let error = env.cni.add(&pod("p1")).await.unwrap_err();
    assert!(matches!(&error, AddError::LeftBehind { .. }), "{error}");
    assert_eq!(env.calls(), ["ADD first", "ADD second", "DEL second", "DEL first"]);
    env.cni.del(&pod("p1")).await.unwrap_err();
    assert_eq!(env.cni.attachments().unwrap(), ["p1"]);
    // The plugin rejects this configuration every time; the corrected file is used.
    env.plugin("second", "! grep -q typo $log/second.$CNI_COMMAND.stdin");
    env.list(&[("first", json!({})), ("second", json!({}))]);
    env.cni.del(&pod("p1")).await.unwrap();
    assert!(env.cached().is_empty());
}

#[tokio::test]
async fn a_hanging_plugin_is_killed_with_its_children() {
    let limit = slow(Duration::from_secs(3));
    let env = TestEnv::with_timeout(limit);
    let started = env.path("started").display().to_string();
    let script = format!("echo waiting >&2; sleep 1000 & echo $! > {started}; echo $$ >> {started}; wait");
    let before = Instant::now();
    let (error, output) = failed(&env, &script).await;
    assert!(matches!(plugin(&error), PluginError::Late { .. }), "{output}");
    assert_eq!(error.kind(), ErrorKind::Deadline);
    assert!(output.contains("waiting") && output.contains("not complete after"), "{output}");
    assert!(before.elapsed() >= limit);
    let pids = fs::read_to_string(&started).unwrap();
    assert_eq!(pids.lines().count(), 2);
    for pid in pids.lines() {
        assert!(is_gone(pid), "{pid} of {pids:?} lives");
    }
}

/// Returns whether a process has exited, also before its new parent reaps it.
fn is_gone(pid: &str) -> bool {
    let until = Instant::now() + slow(Duration::from_secs(5));
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        if stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z ")) {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn a_dropped_call_kills_the_plugin_and_keeps_the_record() {
    let env = TestEnv::new();
    let started = env.path("started");
    let script = format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", started.display());
    env.plugin("bridge", &at_add(&script));
    env.list(&[("bridge", json!({}))]);
    let seen = async {
        while !started.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        done = async { env.cni.add(&pod("p1")).await } => panic!("{done:?}"),
        () = seen => {}
    }
    assert!(is_gone(fs::read_to_string(&started).unwrap().trim()));
    assert_eq!(env.cni.attachments().unwrap(), ["p1"], "as after the death of a daemon");
    env.cni.del(&pod("p1")).await.unwrap();
    assert_eq!(env.calls(), ["ADD bridge", "DEL bridge"]);
    assert!(env.cached().is_empty());
}

#[tokio::test]
async fn invalid_output_is_distinguished_from_a_failure() {
    let cases = [
        ("echo 'I feel fine'", "I feel fine"),
        ("true", "it is empty"),
        ("echo '[]'", "expected a JSON object"),
        (&format!("echo '{}' trailing", RESULT.replace('\n', " ")), "trailing"),
        ("echo '{\"cniVersion\": \"7.0.0\"}'", "unsupported cniVersion"),
        ("echo '{\"cniVersion\": 1}'", "to be a string"),
        ("head -c 5000 /dev/urandom", "invalid result"),
    ];
    for (script, why) in cases {
        let env = TestEnv::new();
        let (error, output) = failed(&env, script).await;
        assert!(matches!(plugin(&error), PluginError::InvalidOutput { .. }), "{script}: {output}");
        assert!(output.contains(why), "{script}: {output}");
        assert!(output.len() < 8000 && !output.contains(|c: char| c.is_control()), "{script}: {output}");
    }
}

#[tokio::test]
async fn a_result_without_an_address_of_the_pod_is_invalid() {
    let cases = [
        (json!({}), "no address for the pod"),
        (json!({ "ips": [] }), "no address for the pod"),
        (json!({ "ips": 7 }), "expected ips to be a list"),
        (json!({ "ips": [{ "address": "10.0.0.1" }] }), "ADDRESS/LENGTH"),
        (json!({ "ips": [{ "address": "10.0.0.1/33" }] }), "ADDRESS/LENGTH"),
        (json!({ "ips": [{ "address": 7 }] }), "ADDRESS/LENGTH"),
        (json!({ "ips": [{ "address": "10.0.0.1/8", "interface": 1 }], "interfaces": [{}] }), "not there"),
        (json!({ "ips": [{ "address": "10.0.0.1/8", "interface": -1 }], "interfaces": [{}] }), "not there"),
        (
            json!({ "ips": [{ "address": "10.0.0.1/8", "interface": 0 }], "interfaces": [{ "name": "br0" }] }),
            "no address",
        ),
        (json!({ "ips": [{ "address": "10.0.0.1/8" }], "interfaces": {} }), "expected interfaces to be a list"),
    ];
    for (result, why) in cases {
        let env = TestEnv::new();
        env.plugin("bridge", &at_add(&format!("echo '{result}'")));
        env.list(&[("bridge", json!({}))]);
        let error = env.cni.add(&pod("p1")).await.unwrap_err();
        assert!(matches!(&error, AddError::Result { .. }), "{result}: {error}");
        assert!(words(&error).contains(why), "{result}: {error}");
        assert_eq!(env.calls(), ["ADD bridge", "DEL bridge"]);
        assert!(env.cached().is_empty());
    }
}

#[tokio::test]
async fn a_plugin_with_too_much_output_is_killed() {
    let env = TestEnv::new();
    let (error, output) = failed(&env, "yes | head -c 100000000; sleep 1000").await;
    assert!(matches!(plugin(&error), PluginError::Flood { .. }), "{output}");
    let env = TestEnv::new();
    let (error, output) = failed(&env, "yes error | head -c 20000000 >&2; echo the end >&2; exit 1").await;
    assert!(matches!(plugin(&error), PluginError::Failed { .. }), "{output}");
    assert!(output.ends_with("the end") && output.len() < 8000, "stderr may be as long as it likes: {output}");
}

#[tokio::test]
async fn an_error_names_the_signal_that_killed_the_plugin() {
    let env = TestEnv::new();
    let (error, output) = failed(&env, "echo going >&2; kill -SEGV $$").await;
    assert!(matches!(plugin(&error), PluginError::Signal { .. }), "{output}");
    assert!(output.contains("killed by SIGSEGV during ADD") && output.ends_with("going"), "{output}");
}

#[tokio::test]
async fn an_error_names_the_path_of_a_plugin_that_cannot_be_started() {
    let env = TestEnv::new();
    fs::write(env.path("bin/bridge"), "#!/nowhere/sh\n").unwrap();
    env.list(&[("bridge", json!({}))]);
    let error = env.cni.add(&pod("p1")).await.unwrap_err();
    let output = words(&error);
    assert!(output.contains("starting the CNI plugin") && output.contains("bin/bridge"), "{output}");
}

#[tokio::test]
async fn a_plugin_may_ignore_its_input_or_leave_a_child() {
    let env = TestEnv::with_timeout(slow(Duration::from_secs(20)));
    let path = env.path("bin/bridge");
    // Its child keeps stdout open beyond the deadline.
    let child = env.path("child");
    let text = format!("#!/bin/sh\nsleep 1000 & echo $! > {}\necho '{RESULT}'\n", child.display());
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // More than the capacity of a pipe.
    env.list(&[("bridge", json!({ "big": "x".repeat(500_000) }))]);
    let attached = env.cni.add(&pod("p1")).await;
    let pid = fs::read_to_string(&child).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert_eq!(attached.unwrap().ips.len(), 2);
}

#[tokio::test]
async fn a_plugin_that_is_being_replaced_is_retried() {
    let env = TestEnv::new();
    env.good("bridge");
    env.list(&[("bridge", json!({}))]);
    let writer = fs::File::options().append(true).open(env.path("bin/bridge")).unwrap();
    let close = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(writer);
    };
    let (attached, ()) = tokio::join!(async { env.cni.add(&pod("p1")).await }, close);
    attached.unwrap();
}
