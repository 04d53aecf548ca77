//! Reloads of the configuration, by SIGHUP and by a change of the file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::json;
use tonic::Code;

use crate::cdi::{Specs, given};
use crate::support::client::{Pod, container};
use crate::support::harness::{Daemon, kill, scrape, seconds, wait_for};

/// Replaces `old` by `new` in the daemon's configuration file.
fn change(daemon: &Daemon, old: &str, new: &str) {
    let text = fs::read_to_string(daemon.env.config()).unwrap();
    assert!(text.contains(old), "{text}");
    let aside = daemon.env.dir().join("aside");
    fs::write(&aside, text.replace(old, new)).unwrap();
    fs::rename(aside, daemon.env.config()).unwrap();
}

fn wait_logged(daemon: &Daemon, words: &[&str]) -> String {
    wait_for(&format!("a line with {words:?}"), seconds(20), || {
        let log = daemon.env.read_log();
        log.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
    })
}

const STUBBORN: [&str; 3] = ["sh", "-c", "trap '' TERM; echo idle; while :; do sleep 1; done"];

#[test]
fn sighup_applies_new_settings_and_names_those_that_need_a_restart() {
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
    wait_logged(&daemon, &["INFO", "configuration reloaded", "log.level", "stop"]);
    wait_logged(&daemon, &["WARN", "restart", "log.format"]);
    // A read is logged at debug.
    assert!(!daemon.env.read_log().contains("rpc=\"Version\""));
    let version = cri_api::v1::VersionRequest::default();
    client.call(|mut c| async move { c.version(version).await }).unwrap();
    wait_logged(&daemon, &["DEBUG", "rpc=\"Version\"", "request complete"]);
    let begin = Instant::now();
    client.stop(&id, 3600).unwrap();
    assert!(begin.elapsed() < seconds(20), "the longest grace is a second now: {:?}", begin.elapsed());
}

#[test]
fn a_changed_file_is_reloaded_without_a_signal_and_an_invalid_one_ignored() {
    let daemon = Daemon::with_settings("[stop]\ngrace_max = 86400");
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "main", &STUBBORN);
    client.wait_printed(&id, "idle");
    change(&daemon, "grace_max = 86400", "grace_max = 1\npassword = \"swordfish99\"");
    let line = wait_logged(&daemon, &["WARN", "keeping the previous settings", "crisp.toml", "password"]);
    assert!(!line.contains("swordfish99"), "{line}");
    assert_eq!(daemon.env.read_log().matches("keeping the previous settings").count(), 1, "reported once");
    change(&daemon, "\npassword = \"swordfish99\"", "");
    wait_logged(&daemon, &["INFO", "configuration reloaded", "stop"]);
    let begin = Instant::now();
    client.stop(&id, 3600).unwrap();
    assert!(begin.elapsed() < seconds(20), "{:?}", begin.elapsed());
    let log = daemon.env.read_log();
    assert!(!log.contains("swordfish99"));
}

/// Sends SIGHUP to the daemon, and waits until `key` is applied.
fn take_up(daemon: &Daemon, key: &str) {
    let before = daemon.env.read_log().len();
    kill(daemon.pid(), Signal::HUP);
    wait_for(&format!("{key} to be in force"), seconds(20), || {
        let log = daemon.env.read_log();
        log[before..].lines().any(|line| line.contains("configuration reloaded") && line.contains(key)).then_some(())
    });
}

#[test]
fn a_reload_changes_the_cdi_directories() {
    let specs = Specs::new();
    let daemon = Daemon::with_settings(&format!("[cdi]\nspec_dirs = [{:?}]\nannotations = false", specs.path("low")));
    specs.write("high/one.json", &[("d", json!({"env": ["FROM=high"]}))]);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let script = ["sh", "-c", "echo from $FROM"];
    let refused = client.try_create(&pod, given("main", &script, &["d"])).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let (low, high) = (format!("[{:?}]", specs.path("low")), format!("[{:?}]", specs.path("high")));
    change(&daemon, &low, &high);
    take_up(&daemon, "cdi");
    assert_eq!(client.finish_config(&pod, given("main", &script, &["d"])).stdout, "from high\n");
    // Which of two directories counts depends on their order.
    specs.write("low/one.json", &[("d", json!({"env": ["FROM=low"]}))]);
    change(&daemon, &high, &format!("[{:?}, {:?}]", specs.path("low"), specs.path("high")));
    take_up(&daemon, "cdi");
    assert_eq!(client.finish_config(&pod, given("second", &script, &["d"])).stdout, "from high\n");
    change(&daemon, "annotations = false", "annotations = true");
    let order = |a: &str, b: &str| format!("[{:?}, {:?}]", specs.path(a), specs.path(b));
    change(&daemon, &order("low", "high"), &order("high", "low"));
    take_up(&daemon, "cdi");
    let mut annotated = container("third", &script);
    annotated.annotations.insert("cdi.k8s.io/x".into(), "tests.example/thing=d".into());
    assert_eq!(client.finish_config(&pod, annotated).stdout, "from low\n");
}

/// Creates a directory with the plugin `odd`, which returns this address and logs its calls.
fn plugin(daemon: &Daemon, dir: &str, address: &str) -> PathBuf {
    let dir = daemon.env.dir().join(dir);
    fs::create_dir(&dir).unwrap();
    let text = format!(
        "#!/bin/sh\necho $CNI_COMMAND >>{}/calls\ncase $CNI_COMMAND in\n\
         ADD) echo '{{\"cniVersion\": \"1.0.0\", \"ips\": [{{\"address\": \"{address}/24\"}}]}}' ;;\n\
         VERSION) echo '{{\"cniVersion\": \"1.0.0\", \"supportedVersions\": [\"1.0.0\"]}}' ;;\nesac\n",
        dir.display()
    );
    fs::write(dir.join("odd"), text).unwrap();
    fs::set_permissions(dir.join("odd"), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

#[test]
fn a_reload_changes_the_network_of_new_pods() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (first, second) = (plugin(&daemon, "first", "10.5.0.2"), plugin(&daemon, "second", "10.5.0.3"));
    let nets = daemon.env.dir().join("nets");
    fs::create_dir(&nets).unwrap();
    let list = r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "odd"}]}"#;
    fs::write(nets.join("10-odd.conflist"), list).unwrap();
    let address = |pod: &Pod| client.pod_status(&pod.id).network.unwrap_or_default().ip;
    let apart = daemon.run_pod("apart");
    assert_eq!(address(&apart), "");

    let cni = format!("mode = \"cni\"\n[network.cni]\nconf_dir = {nets:?}\nbin_dirs = [{first:?}]");
    change(&daemon, "mode = \"none\"", &cni);
    take_up(&daemon, "network.mode");
    let one = daemon.run_pod("one");
    assert_eq!((address(&one), address(&apart)), ("10.5.0.2".into(), "".into()), "only pods that come now");
    let request = cri_api::v1::StatusRequest { verbose: false };
    let status = client.call(|mut c| async move { c.status(request).await }).unwrap().status.unwrap();
    let network = status.conditions.iter().find(|condition| condition.r#type == "NetworkReady").unwrap();
    assert!(network.status, "{network:?}");

    change(
        &daemon,
        &format!("bin_dirs = [{first:?}]"),
        &format!("bin_dirs = [{second:?}]\n[network.bridge]\nmtu = 1400"),
    );
    take_up(&daemon, "network.cni");
    wait_logged(&daemon, &["WARN", "restart", "network.bridge"]);
    let two = daemon.run_pod("two");
    assert_eq!(address(&two), "10.5.0.3");
    change(&daemon, "mode = \"cni\"", "mode = \"none\"");
    take_up(&daemon, "network.mode");
    assert_eq!(address(&daemon.run_pod("three")), "");
    // Pods connected before are still disconnected.
    for pod in [&apart, &one, &two] {
        client.stop_pod(&pod.id).unwrap();
    }
    let calls = fs::read_to_string(second.join("calls")).unwrap();
    assert_eq!(calls.matches("DEL").count(), 2, "{calls}");
}

#[test]
fn a_reload_moves_the_metrics_endpoint() {
    let daemon = Daemon::with_settings("[metrics]\nlisten = \"\"\n[image]\ndownloads = 3");
    let (first, second) = (daemon.env.dir().join("first.sock"), daemon.env.dir().join("second.sock"));
    change(&daemon, "listen = \"\"", &format!("listen = {first:?}"));
    change(&daemon, "downloads = 3", "downloads = 5");
    take_up(&daemon, "metrics.listen");
    wait_logged(&daemon, &["INFO", "configuration reloaded", "image (limits of pulls)"]);
    assert!(scrape(&first).contains("crisp_build_info"));
    // The path of the new socket is in use: the endpoint stays.
    fs::write(&second, "precious").unwrap();
    change(&daemon, &format!("{first:?}"), &format!("{second:?}"));
    kill(daemon.pid(), Signal::HUP);
    wait_logged(&daemon, &["WARN", "metrics.listen", "still", "second.sock"]);
    assert!(scrape(&first).contains("crisp_build_info"));
    assert_eq!(fs::read_to_string(&second).unwrap(), "precious");
    fs::remove_file(&second).unwrap();
    take_up(&daemon, "metrics.listen");
    assert!(scrape(&second).contains("crisp_build_info"));
    wait_for("the first to be gone", seconds(10), || (!first.exists()).then_some(()));
    change(&daemon, &format!("listen = {second:?}"), "listen = \"\"");
    take_up(&daemon, "metrics.listen");
    wait_for("the second to be gone", seconds(10), || (!second.exists()).then_some(()));
}
