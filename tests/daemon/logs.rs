//! The log of the daemon: names, numbers, ends of containers, conditions, and the state that a start recovered.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use cri_api::v1;
use rustix::process::Signal;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tonic::Code;

use crate::support::client::container;
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, kill, seconds, wait_for};

/// A JSON value; a name that an object has twice is an error.
struct Strict(Value);

struct StrictVisitor;

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut values = serde_json::Map::new();
        while let Some((key, Strict(value))) = map.next_entry::<String, Strict>()? {
            if values.insert(key.clone(), value).is_some() {
                return Err(A::Error::custom(format_args!("the name {key:?} is there twice")));
            }
        }
        Ok(values.into())
    }
}

fn parsed(line: &str) -> Value {
    serde_json::from_str::<Strict>(line).unwrap_or_else(|error| panic!("{error}: {line}")).0
}

/// Waits for a line with all these words.
fn wait_logged(env: &TestEnv, words: &[&str]) -> String {
    wait_for(&format!("a line with {words:?}"), seconds(30), || {
        let log = env.read_log();
        log.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
    })
}

fn count(env: &TestEnv, words: &[&str]) -> usize {
    env.read_log().lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

/// A container that the kernel ends for its memory.
fn greedy(name: &str) -> v1::ContainerConfig {
    let mut config = container(name, &["sh", "-c", "x=0123456789abcdef; while :; do x=$x$x; done"]);
    config.linux.as_mut().unwrap().resources =
        Some(v1::LinuxContainerResources { memory_limit_in_bytes: 24 << 20, ..Default::default() });
    config
}

/// The names of `pod`, as text lines have them.
fn names_of(pod: &str) -> [String; 3] {
    ["namespace=\"tests\"".to_owned(), format!("pod_name=\"{pod}\""), format!("pod_uid=\"uid-of-{pod}\"")]
}

fn assert_names(line: &str, pod: &str) {
    for name in names_of(pod) {
        assert_eq!(line.matches(&name).count(), 1, "{name}: {line}");
    }
}

#[test]
fn json_lines_have_each_name_once_and_numbers_as_numbers() {
    let mut daemon = Daemon::with_settings("[log]\nformat = \"json\"\nlevel = \"debug\"");
    let pod = daemon.run_pod("pod");
    let client = daemon.client();
    let id = client.run_idle(&pod, "main");
    client.exec_script(&id, "true");
    client.try_exec(&id, &["/nonexistent"], 5).ok();
    client.finish_config(&pod, greedy("greedy"));
    client.script(&pod, "seven", "exit 7");
    client.status(&id[..12]);
    client.try_status("0123").unwrap_err();
    let mut refused = daemon.pod_config("refused");
    refused.log_directory = "relative".into();
    client.try_run_pod(refused).unwrap_err();
    let update = v1::LinuxContainerResources { cpu_quota: 20_000, cpu_period: 100_000, ..Default::default() };
    let request =
        v1::UpdateContainerResourcesRequest { container_id: id.clone(), linux: Some(update), ..Default::default() };
    client.call(|mut c| async move { c.update_container_resources(request).await }).unwrap();
    let stats = v1::ListContainerStatsRequest::default();
    client.call(|mut c| async move { c.list_container_stats(stats).await }).unwrap();
    daemon.restart();
    daemon.client().stop(&id, 0).unwrap();
    daemon.client().remove_pod(&pod.id).unwrap();
    daemon.terminate();
    let lines: Vec<Value> = daemon.env.read_log().lines().map(parsed).collect();
    let of = |rpc: &str| {
        let found = lines.iter().find(|line| line["span"]["rpc"] == rpc && line["message"] == "request complete");
        found.unwrap_or_else(|| panic!("no line for {rpc}"))
    };
    let run = of("RunPodSandbox");
    assert_eq!(run["span"]["name"], "rpc", "{run}");
    for (key, value) in [("namespace", "tests"), ("pod_name", "pod"), ("pod_uid", "uid-of-pod"), ("pod", &pod.id)] {
        assert_eq!(run["span"][key], value, "{run}");
    }
    assert!(run["duration_us"].as_u64().is_some_and(|us| us > 0), "{run}");
    let update = of("UpdateContainerResources");
    for (key, value) in [("pod_name", "pod"), ("container_name", "main"), ("container", &id), ("pod", &pod.id)] {
        assert_eq!(update["span"][key], value, "{update}");
    }
    let exits: Vec<&Value> = lines.iter().filter(|line| line["message"] == "container exited").collect();
    assert_eq!(exits.len(), 3, "{exits:#?}");
    let end = |name: &str| *exits.iter().find(|line| line["span"]["container_name"] == name).unwrap();
    assert_eq!((&end("seven")["code"], &end("seven")["reason"]), (&7.into(), &"Error".into()));
    let oom = end("greedy");
    assert_eq!((&oom["level"], &oom["reason"], &oom["code"]), (&"WARN".into(), &"OOMKilled".into(), &137.into()));
    assert_eq!(oom["memory_limit_bytes"], 24 << 20, "{oom}");
    // A value with a unit in its name is a number, wherever it is.
    let units = ["_us", "_ms", "_s", "_bytes"];
    for line in &lines {
        for (key, value) in line.as_object().unwrap() {
            assert!(!units.iter().any(|unit| key.ends_with(unit)) || value.is_number(), "{key}: {line}");
            assert!(!["duration", "took", "after", "pause"].contains(&key.as_str()), "{key}: {line}");
        }
    }
}

#[test]
fn a_failed_request_is_logged_with_names_before_anything_exists() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let run = v1::RunPodSandboxRequest { config: Some(daemon.pod_config("lost")), runtime_handler: "kata".into() };
    client.call(|mut c| async move { c.run_pod_sandbox(run).await }).unwrap_err();
    assert_names(&wait_logged(&daemon.env, &["ERROR", "RunPodSandbox", "kata"]), "lost");
    let mut relative = daemon.pod_config("relative");
    relative.log_directory = "relative".into();
    assert_eq!(client.try_run_pod(relative).unwrap_err().code(), Code::InvalidArgument);
    assert_names(&wait_logged(&daemon.env, &["ERROR", "RunPodSandbox", "config.log_directory"]), "relative");
    // The names of a request do not flood the log.
    let mut long = daemon.pod_config("long");
    long.metadata.as_mut().unwrap().name = "x".repeat(100_000);
    client.try_run_pod(long).ok();
    assert!(daemon.env.read_log().lines().all(|line| line.len() < 10_000));
    let pod = daemon.run_pod("pod");
    let mut bad = container("main", &["true"]);
    bad.log_path = "/etc/x.log".into();
    client.try_create(&pod, bad).unwrap_err();
    let line = wait_logged(&daemon.env, &["ERROR", "CreateContainer", "config.log_path"]);
    assert_names(&line, "pod");
    assert!(line.contains("container_name=\"main\"") && line.contains(&pod.id), "{line}");
}

#[test]
fn lines_of_requests_by_a_prefix_of_the_id_have_names_and_the_whole_id() {
    let mut daemon = Daemon::with_settings("[log]\nlevel = \"debug\"");
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    daemon.client().status(&id[..10]);
    daemon.client().pod_status(&pod.id[..10]);
    daemon.client().stop(&id[..10], 0).unwrap();
    daemon.terminate();
    for rpc in ["rpc=\"ContainerStatus\"", "rpc=\"StopContainer\""] {
        let line = wait_logged(&daemon.env, &[rpc, "request complete"]);
        assert_names(&line, "pod");
        assert!(line.contains("container_name=\"main\"") && line.contains(&id) && line.contains(&pod.id), "{line}");
    }
    let line = wait_logged(&daemon.env, &["rpc=\"PodSandboxStatus\"", "request complete"]);
    assert_names(&line, "pod");
    assert!(line.contains(&pod.id), "{line}");
}

#[test]
fn every_end_of_a_container_is_logged_once_with_names_code_reason_and_peak() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let client = daemon.client();
    client.script(&pod, "fine", "true");
    client.script(&pod, "seven", "exit 7");
    client.finish_config(&pod, greedy("greedy"));
    let lost = daemon.run_pod("lost");
    let kept = client.run_idle(&lost, "kept");
    let (names, peak) = (["container exited", "container_name=\"greedy\""], "memory_peak_bytes=");
    let line = wait_logged(&daemon.env, &names);
    assert!(line.contains(" WARN ") && line.contains("code=137") && line.contains("reason=\"OOMKilled\""), "{line}");
    assert!(line.contains(&format!("memory_limit_bytes={}", 24 << 20)) && line.contains("oom_kills=1"), "{line}");
    let peak: u64 = line.split_once(peak).unwrap().1.split(' ').next().unwrap().parse().unwrap();
    assert!((8 << 20..=24 << 20).contains(&peak), "{line}");
    assert_names(&line, "pod");
    for (name, code, reason) in [("fine", "code=0", "Completed"), ("seven", "code=7", "Error")] {
        let line = wait_logged(&daemon.env, &["container exited", &format!("container_name=\"{name}\"")]);
        assert!(line.contains(" INFO ") && line.contains(code) && line.contains(reason), "{line}");
        assert_names(&line, "pod");
    }
    // A container that exits while no daemon runs is logged by the next one.
    let later = daemon.client().run_idle(&pod, "later");
    let first = daemon.pids(&later)[0];
    daemon.kill9();
    kill(first, Signal::KILL);
    daemon.revive();
    let line = wait_logged(&daemon.env, &["container exited", "container_name=\"later\"", "code=137"]);
    assert_names(&line, "pod");
    // A container whose shim is killed.
    let pids: BTreeSet<i32> = daemon.shims().into_iter().collect();
    for shim in pids {
        kill(shim, Signal::KILL);
    }
    let line = wait_logged(&daemon.env, &["container exited", &kept, "ShimLost"]);
    assert!(line.contains("code=255") && line.contains("detail="), "{line}");
    assert_names(&line, "lost");
    assert_names(&wait_logged(&daemon.env, &[" WARN ", "the pod's shim exited", &lost.id]), "lost");
    daemon.restart();
    for name in ["fine", "seven", "greedy", "later", "kept"] {
        assert_eq!(count(&daemon.env, &["container exited", &format!("container_name=\"{name}\"")]), 1, "{name}");
    }
}

#[test]
fn every_change_of_a_node_condition_is_logged_once_without_a_status_call() {
    let daemon = Daemon::on(TestEnv::connected(""));
    let env = &daemon.env;
    wait_logged(env, &["INFO", "node condition changed", "condition=\"RuntimeReady\" status=true"]);
    wait_logged(env, &["INFO", "node condition changed", "condition=\"NetworkReady\" status=true", "bridge"]);
    let broken = env.cni().join("10-broken.conflist");
    let conflist = r#"{"cniVersion":"1.0.0","name":"broken","plugins":[{"type":"no-such-plugin"}]}"#;
    fs::write(&broken, conflist).unwrap();
    let line = wait_logged(env, &["WARN", "NetworkReady\" status=false", "reason=\"CniNotReady\""]);
    assert!(line.contains("no-such-plugin"), "{line}");
    let status = v1::StatusRequest::default();
    daemon.client().call(|mut c| async move { c.status(status).await }).unwrap();
    fs::remove_file(&broken).unwrap();
    wait_for("NetworkReady to be true again", seconds(30), || {
        (count(env, &["NetworkReady\" status=true"]) == 2).then_some(())
    });
    let status = v1::StatusRequest::default();
    daemon.client().call(|mut c| async move { c.status(status).await }).unwrap();
    assert_eq!(count(env, &["NetworkReady\" status=false"]), 1);
    assert_eq!(count(env, &["node condition changed"]), 4);
}

#[test]
fn a_pool_that_overlaps_is_logged_at_the_start() {
    let first = Daemon::on(TestEnv::connected("[network.bridge]\npools = [\"10.77.0.0/24\"]"));
    first.run_pod("pod");
    let second = first.env.beside("[network.bridge]\nname = \"other0\"\npools = [\"10.77.0.0/24\"]");
    let second = Daemon::on(second);
    let words = ["WARN", "NetworkReady\" status=false", "reason=\"BridgeNotReady\"", "overlaps", "10.77.0.0/24"];
    assert_eq!(count(&second.env, &words), 1, "before it is ready: {}", second.env.read_log());
    first.client().remove_everything();
}

#[test]
fn a_start_logs_what_it_recovered() {
    let mut daemon = Daemon::with_failpoints(TestEnv::new(), "resize.journal=kill");
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    daemon.client().script(&pod, "ended", "true");
    let update = v1::LinuxContainerResources { cpu_quota: 20_000, cpu_period: 100_000, ..Default::default() };
    let request = v1::UpdateContainerResourcesRequest { container_id: id, linux: Some(update), ..Default::default() };
    daemon.client().call(|mut c| async move { c.update_container_resources(request).await }).unwrap_err();
    daemon.wait_ended();
    daemon.revive_with_failpoints("run_pod.cgroup=kill");
    let line = wait_logged(&daemon.env, &["recovered the state", "pods_ready=1"]);
    for value in ["containers_running=1", "containers_exited=1", "resizes_finished=0", "resizes_undone=1"] {
        assert!(line.contains(value), "{value}: {line}");
    }
    assert!(line.contains(" INFO ") && line.contains("images=1"), "{line}");
    daemon.client().try_run_pod(daemon.pod_config("half")).unwrap_err();
    daemon.wait_ended();
    // A record that this daemon cannot read.
    let record = daemon.env.state().join("pods").join(&pod.id).join("pod.json");
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, "{").unwrap();
    daemon.revive();
    let line = wait_logged(&daemon.env, &["recovered the state", "cleanups_resumed=1", "unreadable_pods=1"]);
    assert!(line.contains("resizes_undone=0"), "{line}");
    assert_names(
        &wait_logged(&daemon.env, &["INFO", "removing a pod that the previous daemon left incomplete"]),
        "half",
    );
    assert_names(&wait_logged(&daemon.env, &["ERROR", "can only be listed, stopped and removed"]), "pod");
    daemon.kill9();
    fs::write(&record, text).unwrap();
    daemon.revive();
}

/// The user `nobody`.
const NOBODY: u32 = 65534;

/// Returns an environment whose files any user can read.
fn readable() -> TestEnv {
    let env = TestEnv::new();
    for (path, mode) in [(env.dir().to_owned(), 0o755), (env.config(), 0o644)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    env
}

#[test]
fn a_daemon_of_another_user_than_root_refuses_to_start() {
    let env = readable();
    let mut process = env.serve().uid(NOBODY).gid(NOBODY).spawn().unwrap();
    let ended = wait_for("the daemon to refuse", seconds(20), || process.try_wait().unwrap());
    let log = env.read_log();
    assert!(!ended.success() && log.contains("must run as root") && log.contains("user 65534"), "{log}");
    assert!(!env.socket().exists());
}

#[test]
fn a_check_by_another_user_than_root_names_that_user_in_its_verdict() {
    let env = readable();
    let output = env.verb("check", &[]).uid(NOBODY).gid(NOBODY).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{text}{errors}");
    assert!(text.lines().last().unwrap().starts_with("not root, "), "{text}");
    assert!(errors.starts_with("crisp: not root: "), "{errors}");
}

#[test]
fn a_check_counts_the_conditions_of_the_daemon() {
    let daemon = Daemon::on(TestEnv::connected(""));
    assert!(daemon.env.verb_ok("check", &[]).contains("\npods can run on this host: "));
    // The daemon has no network, and the configuration of the check does.
    let conflist = r#"{"cniVersion":"1.0.0","name":"broken","plugins":[{"type":"no-such-plugin"}]}"#;
    fs::write(daemon.env.cni().join("10-broken.conflist"), conflist).unwrap();
    let text = fs::read_to_string(daemon.env.config()).unwrap();
    let other = text.replace("[network.cni]\nconf_dir = ", "[network.cni]\nconf_dir = \"/nonexistent\" #");
    assert_ne!(other, text);
    let file = daemon.env.dir().join("other.toml");
    fs::write(&file, other).unwrap();
    let output = daemon.env.crisp(&["check", "--config"]).arg(&file).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("\npods cannot run on this host: "), "{text}");
    assert!(errors.contains("NetworkReady") && errors.contains("no-such-plugin"), "{errors}");
    fs::remove_file(daemon.env.cni().join("10-broken.conflist")).unwrap();
    // Pods run with network.mode = "none", but the node is not ready.
    let off = Daemon::start();
    let text = off.env.verb_ok("check", &[]);
    assert!(text.contains("but NetworkReady is false (NetworkOff)"), "{text}");
}

#[test]
fn a_word_that_is_not_a_level_is_refused_at_the_start_and_by_a_reload() {
    let env = TestEnv::with_settings("[log]\nlevel = \"verbose\"");
    let mut process = env.serve().spawn().unwrap();
    let ended = wait_for("the daemon to refuse", seconds(20), || process.try_wait().unwrap());
    let log = env.read_log();
    assert!(!ended.success(), "{log}");
    for words in ["log.level", "\"verbose\" is not a log level", "error, warn, info", "did you mean \"debug\"?"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    let daemon = Daemon::with_settings("[log]\nlevel = \"warning\"");
    let fail = |name: &str| {
        let run = v1::RunPodSandboxRequest { config: Some(daemon.pod_config(name)), runtime_handler: "kata".into() };
        daemon.client().call(|mut c| async move { c.run_pod_sandbox(run).await }).unwrap_err();
        wait_logged(&daemon.env, &["ERROR", &format!("pod_name=\"{name}\"")]);
    };
    fail("first");
    assert!(!daemon.env.read_log().contains(" INFO "), "{}", daemon.env.read_log());
    let text = fs::read_to_string(daemon.env.config()).unwrap();
    fs::write(daemon.env.config(), text.replace("\"warning\"", "\"wraning\"")).unwrap();
    kill(daemon.pid(), Signal::HUP);
    wait_logged(&daemon.env, &["WARN", "keeping the previous settings", "did you mean", "warn"]);
    fail("second");
    fs::write(daemon.env.config(), text.replace("\"warning\"", "\"net=debug\"")).unwrap();
    kill(daemon.pid(), Signal::HUP);
    wait_logged(&daemon.env, &["INFO", "configuration reloaded", "log.level"]);
    fail("third");
}
