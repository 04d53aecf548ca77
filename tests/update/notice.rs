//! Notices of a resize to the program in a container.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};
use tonic::Code;

use super::*;
use crate::support::client::{pod_namespaces, security};
use crate::support::env::TestEnv;
use crate::support::harness::{kill, scrape, seconds, wait_for};
use crate::userns;

const ALLOWED: &str = r#"[container]
resize_notices = ["file", "SIGHUP", "hook"]
resize_hook = ["sh", "-c", "echo began >> /tmp/began; test ! -e /tmp/hang || sleep 1000; echo ran >> /tmp/ran; test ! -e /tmp/fail"]
"#;
const FILE: &str = "/run/crisp-resize/resources";
/// Prints a line for each SIGHUP, and waits for more.
const HANGUPS: &str = "trap 'echo hangup' HUP; sleep 100000 & echo ready; while :; do wait; done";

fn select(config: &mut v1::PodSandboxConfig, container: &str, notices: &str) {
    config.annotations.insert(format!("resize-notice.crisp.dev/{container}"), notices.to_owned());
}

fn run_pod(daemon: &Daemon, name: &str, notices: &str) -> Pod {
    daemon.run_pod_with(name, |config| select(config, "main", notices))
}

fn with_limits(mut config: v1::ContainerConfig) -> v1::ContainerConfig {
    config.linux.as_mut().unwrap().resources = Some(limits(500, 64));
    config
}

fn run(daemon: &Daemon, pod: &Pod, name: &str, script: &str) -> String {
    let id = daemon.client().run_config(pod, with_limits(container(name, &["sh", "-c", script])));
    daemon.client().wait_printed(&id, "ready");
    id
}

fn count(daemon: &Daemon, id: &str, text: &str) -> usize {
    daemon.client().lines(id).iter().filter(|line| line.text == text).count()
}

fn wait_count(daemon: &Daemon, id: &str, text: &str, expected: usize) {
    wait_for(&format!("{expected} of {text}"), seconds(20), || (count(daemon, id, text) == expected).then_some(()));
}

fn content(daemon: &Daemon, id: &str) -> Value {
    serde_json::from_str(&daemon.client().exec_script(id, &format!("cat {FILE}"))).unwrap()
}

fn wait_content(daemon: &Daemon, id: &str, millis: i64, mib: i64) -> Value {
    wait_for("the new content", seconds(20), || {
        let content = content(daemon, id);
        let is_new = content["cpu_quota_us"] == millis * 100 && content["memory_bytes"] == mib * MIB;
        is_new.then_some(content)
    })
}

fn wait_logged(daemon: &Daemon, words: &[&str]) {
    wait_for(&format!("{words:?} in the log"), seconds(30), || {
        let log = daemon.env.read_log();
        log.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
    });
}

#[test]
fn a_signal_reaches_the_first_process_alone_also_in_a_shared_pid_namespace() {
    let daemon = Daemon::with_settings(ALLOWED);
    let client = daemon.client();
    for (name, mode) in [("own", v1::NamespaceMode::Container), ("shared", v1::NamespaceMode::Pod)] {
        let pod = daemon.run_pod_with(name, |config| {
            pod_namespaces(config).pid = mode.into();
            select(config, "main", "SIGHUP");
        });
        let of_pod = |name: &str, script: &str| {
            let mut config = with_limits(container(name, &["sh", "-c", script]));
            security(&mut config).namespace_options.as_mut().unwrap().pid = mode.into();
            let id = client.run_config(&pod, config);
            client.wait_printed(&id, "ready");
            id
        };
        let child = "sh -c \"trap 'echo child' HUP; while :; do sleep 1; done\" &";
        let main = of_pod("main", &format!("{child} {HANGUPS}"));
        let other = of_pod("other", HANGUPS);
        client.update(&main, limits(700, 128)).unwrap();
        wait_count(&daemon, &main, "hangup", 1);
        // Without a change there is no notice, and a container without the annotation gets none.
        client.update(&main, limits(700, 128)).unwrap();
        client.update(&other, limits(700, 128)).unwrap();
        client.update(&main, limits(600, 128)).unwrap();
        wait_count(&daemon, &main, "hangup", 2);
        assert_eq!((count(&daemon, &other, "hangup"), count(&daemon, &main, "child")), (0, 0), "{name}");
        // A refused resize changes nothing.
        client.update(&main, limits(600, 0)).ok();
        assert_eq!(client.status(&main).state, v1::ContainerState::ContainerRunning as i32);
    }
}

#[test]
fn a_container_that_is_not_started_yet_gets_no_signal() {
    let daemon = Daemon::with_settings(ALLOWED);
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod", "file,SIGHUP");
    let id = client.try_create(&pod, with_limits(container("main", &["sh", "-c", HANGUPS]))).unwrap();
    client.update(&id, limits(700, 128)).unwrap();
    wait_logged(&daemon, &["WARN", "cannot get its notice", "notice=\"signal\"", "container=\"main\"", &id]);
    client.start(&id).unwrap();
    client.wait_printed(&id, "ready");
    wait_content(&daemon, &id, 700, 128);
    client.update(&id, limits(800, 128)).unwrap();
    wait_count(&daemon, &id, "hangup", 1);
}

#[test]
fn the_file_changes_atomically_and_is_read_only() {
    let daemon = Daemon::with_settings(ALLOWED);
    let client = daemon.client();
    // The reader prints everything but a complete object.
    let reader = format!("echo ready; while :; do grep -v '^{{.*}}$' {FILE}; done");
    let plain = run_pod(&daemon, "plain", "file");
    let plain = run(&daemon, &plain, "main", &reader);
    let mapped = userns::run_pod_with(&daemon, "mapped", |config| select(config, "main", " file "));
    let mapped = client.run_config(&mapped, with_limits(userns::script("main", &reader)));
    client.wait_printed(&mapped, "ready");
    for id in [&plain, &mapped] {
        let first = content(&daemon, id);
        let expected = json!({
            "version": 1, "time_ms": first["time_ms"],
            "cpu_quota_us": 50_000, "cpu_period_us": 100_000, "memory_bytes": 64 * MIB,
        });
        assert_eq!(first, expected);
        for round in 0..20 {
            client.update(id, limits(600 + 10 * round, 65 + round)).unwrap();
        }
        let last = wait_content(&daemon, id, 790, 84);
        assert!(last["time_ms"].as_u64().unwrap() >= first["time_ms"].as_u64().unwrap(), "{first} {last}");
        let mut open = limits(790, 84);
        open.cpu_quota = -1;
        client.update(id, open).unwrap();
        wait_for("no quota", seconds(20), || content(&daemon, id)["cpu_quota_us"].is_null().then_some(()));
        assert_eq!(count(&daemon, id, "ready"), client.lines(id).len(), "no other content was read");
        for write in [
            format!("echo x > {FILE}"),
            "touch /run/crisp-resize/new".to_owned(),
            format!("rm {FILE}"),
            "mount -o remount,rw,bind /run/crisp-resize".to_owned(),
        ] {
            let refused = client.exec(id, &["sh", "-c", &write]);
            assert!(refused.code != 0, "{write}: {refused:?}");
        }
        assert_eq!(content(&daemon, id)["memory_bytes"], 84 * MIB);
    }
    client.remove_everything();
    daemon.env.wait_until_empty(Some(daemon.pid()));
}

#[test]
fn annotations_beyond_the_handler_are_refused_and_without_one_nothing_is_mounted() {
    let refused = |daemon: &Daemon, notices: &str, words: &[&str]| {
        let mut config = daemon.pod_config("pod");
        select(&mut config, "any", notices);
        let refusal = daemon.client().try_run_pod(config).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
        for word in ["resize-notice.crisp.dev/any", "resize_notices"].iter().chain(words) {
            assert!(refusal.message().contains(word), "{refusal:?}");
        }
    };
    let off = Daemon::start();
    for notices in ["file", "SIGHUP", "hook"] {
        refused(&off, notices, &["allows none"]);
    }
    off.env.wait_until_empty(Some(off.pid()));

    let daemon = Daemon::with_settings(ALLOWED);
    let client = daemon.client();
    for notices in ["SIGKILL", "SIGUSR1", "9", "file,SIGTERM", "", "/bin/sh"] {
        refused(&daemon, notices, &["allows file, hook, SIGHUP"]);
    }
    let pod = daemon.run_pod("none");
    let id = client.run_limited(&pod, "main", limits(500, 64));
    client.update(&id, limits(700, 128)).unwrap();
    assert!(client.exec(&id, &["ls", "/run/crisp-resize"]).code != 0);
    assert!(!client.exec_script(&id, "cat /proc/self/mountinfo").contains("resize-notice"));

    // A mount of the request would hide the file.
    let pod = run_pod(&daemon, "pod", "file");
    let mut config = container("main", &["true"]);
    config.mounts.push(v1::Mount {
        container_path: "/run/crisp-resize".into(),
        host_path: daemon.env.dir().display().to_string(),
        ..Default::default()
    });
    let refusal = client.try_create(&pod, config).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    assert!(refusal.message().contains("config.mounts[0]"), "{refusal:?}");

    // A notice that the configuration no longer allows is neither mounted nor sent.
    let id = run(&daemon, &pod, "main", HANGUPS);
    let text = fs::read_to_string(daemon.env.config()).unwrap();
    fs::write(daemon.env.config(), text.replace("[\"file\", \"SIGHUP\", \"hook\"]", "[\"SIGHUP\"]")).unwrap();
    kill(daemon.pid(), Signal::HUP);
    wait_logged(&daemon, &["configuration reloaded"]);
    client.update(&id, limits(700, 128)).unwrap();
    wait_logged(&daemon, &["WARN", "cannot get its notice", "namespace=\"tests\"", "pod=\"pod\"", "allows SIGHUP"]);
    assert_eq!(content(&daemon, &id)["cpu_quota_us"], 50_000);
    client.remove(&id).unwrap();
    let refusal = client.try_create(&pod, container("main", &["true"])).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    assert!(refusal.message().contains("resize-notice.crisp.dev/main"), "{refusal:?}");
}

#[test]
fn a_hook_that_hangs_or_fails_delays_no_resize_and_runs_once_at_a_time() {
    let daemon = Daemon::on(TestEnv::with_metrics(ALLOWED));
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod", "file,hook");
    let id = run(&daemon, &pod, "main", "echo ready; exec sleep 100000");
    let runs = |file: &str| client.exec_script(&id, &format!("cat /tmp/{file} 2>/dev/null | wc -l")).trim().to_owned();
    let wait_runs = |file: &str, number: &str| {
        wait_for("the hook", seconds(40), || (runs(file) == number).then_some(()));
    };
    client.update(&id, limits(600, 64)).unwrap();
    wait_runs("ran", "1");
    client.exec_script(&id, "touch /tmp/hang");
    client.update(&id, limits(610, 64)).unwrap();
    wait_runs("began", "2");
    let clock = Instant::now();
    for millis in [620, 630, 640, 650] {
        client.update(&id, limits(millis, 64)).unwrap();
    }
    assert!(clock.elapsed() < seconds(5), "{:?}", clock.elapsed());
    let other = run_pod(&daemon, "other", "SIGHUP");
    let other = run(&daemon, &other, "main", HANGUPS);
    client.update(&other, limits(700, 64)).unwrap();
    wait_count(&daemon, &other, "hangup", 1);
    assert_eq!(runs("began"), "2", "one at a time");
    client.exec_script(&id, "rm /tmp/hang; touch /tmp/fail");
    wait_logged(&daemon, &["WARN", "cannot get its notice", "notice=\"hook\"", "did not exit within 10s"]);
    // One more for the four resizes meanwhile.
    wait_runs("ran", "2");
    wait_logged(&daemon, &["WARN", "notice=\"hook\"", "resize_hook exited with code 1"]);
    assert_eq!(runs("began"), "3");
    assert_eq!(content(&daemon, &id)["cpu_quota_us"], 65_000);
    assert!(!client.exec_script(&id, "ps").contains("sleep 1000\n"), "the hook was killed");
    let metrics = scrape(&daemon.env.metrics());
    for (kind, outcome, count) in
        [("file", "sent", 3), ("hook", "sent", 1), ("hook", "failed", 2), ("signal", "sent", 1)]
    {
        let line = format!("crisp_resize_notices_total{{kind=\"{kind}\",outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

#[test]
fn a_hostile_container_harms_neither_its_resize_nor_other_pods() {
    let daemon = Daemon::with_settings(ALLOWED);
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod", "file,SIGHUP,hook");
    let mut config = with_limits(container("main", &["sh", "-c", HANGUPS]));
    let add_capabilities = vec!["SYS_ADMIN".to_owned()];
    security(&mut config).capabilities = Some(v1::Capability { add_capabilities, ..Default::default() });
    let id = client.run_config(&pod, config);
    client.wait_printed(&id, "ready");
    let precious = daemon.env.dir().join("precious");
    fs::write(&precious, "mine").unwrap();
    client.exec_script(
        &id,
        &format!(
            "mount -o remount,rw,bind /run/crisp-resize && cd /run/crisp-resize && rm resources && \
             mkdir resources && ln -s {} resources.new && touch /tmp/hang; dd if=/dev/zero of=full 2>/dev/null; true",
            precious.display()
        ),
    );
    kill(daemon.pids(&id)[0], Signal::STOP);
    let clock = Instant::now();
    client.update(&id, limits(700, 128)).unwrap();
    assert!(clock.elapsed() < seconds(5), "{:?}", clock.elapsed());
    assert_limits(&daemon, &id, 700, 128);
    wait_logged(&daemon, &["WARN", "cannot get its notice", "notice=\"file\"", &id]);
    let other = run_pod(&daemon, "other", "file,SIGHUP");
    let other = run(&daemon, &other, "main", HANGUPS);
    client.update(&other, limits(700, 128)).unwrap();
    wait_count(&daemon, &other, "hangup", 1);
    wait_content(&daemon, &other, 700, 128);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
    kill(daemon.pids(&id)[0], Signal::CONT);
    wait_count(&daemon, &id, "hangup", 1);
    client.remove_everything();
    daemon.env.wait_until_empty(Some(daemon.pid()));
}

#[test]
fn a_resize_that_is_finished_at_the_start_is_noticed_too() {
    let mut daemon = Daemon::with_failpoints(TestEnv::with_settings(ALLOWED), "resize.applied=kill");
    let pod = run_pod(&daemon, "pod", "file,SIGHUP");
    let id = run(&daemon, &pod, "main", HANGUPS);
    daemon.client().update(&id, limits(700, 128)).unwrap_err();
    daemon.wait_ended();
    daemon.revive();
    wait_count(&daemon, &id, "hangup", 1);
    wait_content(&daemon, &id, 700, 128);
}

#[test]
fn a_container_that_is_not_created_leaves_no_file_about_resizes() {
    for action in ["fail", "kill"] {
        let env = TestEnv::with_settings(ALLOWED);
        let mut daemon = Daemon::with_failpoints(env, &format!("create.bundle={action}"));
        let pod = run_pod(&daemon, "pod", "file");
        let before = daemon.snapshot();
        daemon.client().try_create(&pod, container("main", &["true"])).unwrap_err();
        if action == "kill" {
            daemon.wait_ended();
            daemon.revive();
        }
        daemon.wait_until_like(&before);
    }
}
