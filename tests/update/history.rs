//! `crisp history`: the resizes of a pod, also of earlier daemons.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use super::memory::holding;
use super::*;
use crate::support::env::TestEnv;
use crate::support::harness::{seconds, wait_for};

/// The resizes that `crisp history` prints for `target`.
pub(super) fn history(daemon: &Daemon, target: &str) -> Vec<Value> {
    let text = daemon.env.verb_ok("history", &[target, "--json"]);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn has(entry: &Value, resource: &str, old: &str, new: &str) -> bool {
    let wanted = json!({ "resource": resource, "old": old, "new": new });
    entry["resources"].as_array().unwrap().contains(&wanted)
}

fn start() -> (Daemon, Pod, String) {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_limited(&pod, "main", limits(500, 64));
    (daemon, pod, id)
}

/// A process that is killed at the end of the test.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn resizes_are_listed_with_caller_values_read_back_and_outcome_also_after_a_restart() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = holding(&daemon, &pod, "main", 24, 64);
    let client = daemon.client();
    let mut request = tonic::Request::new(v1::UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(limits(250, 128)),
        ..Default::default()
    });
    let trace = "0af7651916cd43dd8448eb211c80319c";
    request.metadata_mut().insert("traceparent", format!("00-{trace}-b7ad6b7169203331-00").parse().unwrap());
    client.call(|mut c| async move { c.update_container_resources(request).await }).unwrap();
    client.update(&id, limits(250, 128)).unwrap();
    client.update(&id, limits(250, 12)).unwrap_err();
    let kept = history(&daemon, &id);
    let [up, refused] = &kept[..] else { panic!("{kept:#?}") };
    assert!(has(up, "cpu", "1", "250m") && has(up, "memory", "64Mi", "128Mi"), "{up:#}");
    assert_eq!((&up["outcome"], &up["caller"]["trace_id"]), (&json!("applied"), &json!(trace)));
    assert_eq!(up["caller"]["pid"], std::process::id());
    let knob = if kernel_state::is_v2() { "memory.max" } else { "memory.limit_in_bytes" };
    let wanted = json!({ "file": knob, "old": (64 * MIB).to_string(), "new": (128 * MIB).to_string() });
    assert!(up["files"].as_array().unwrap().contains(&wanted), "{up:#}");
    assert!(has(refused, "memory", "128Mi", "12Mi"), "{refused:#}");
    assert_eq!((&refused["outcome"], &refused["reason"]), (&json!("refused"), &json!("below_usage")));
    assert!(refused["error"].as_str().unwrap().contains("below current usage"), "{refused:#}");

    daemon.restart();
    assert_eq!(history(&daemon, "pod"), kept);
    let table = daemon.env.verb_ok("history", &[]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.starts_with("TIME ") && table.contains("tests/pod/main"), "{table}");
    assert!(table.contains("memory 64Mi → 128Mi") && table.contains("refused (below usage)"), "{table}");
    daemon.client().remove_pod(&pod.id).unwrap();
    assert_eq!(daemon.env.verb_ok("history", &[]).lines().count(), 1);
}

#[test]
fn rolled_back_and_interrupted_resizes_are_in_the_history() {
    let mut daemon = Daemon::with_failpoints(TestEnv::new(), "resize.applied=fail");
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_limited(&pod, "main", limits(500, 64));
    daemon.client().update(&id, limits(700, 128)).unwrap_err();
    daemon.kill9();
    for (point, outcome) in [("resize.journal", "rolled_back"), ("resize.recorded", "applied")] {
        daemon.revive_with_failpoints(&format!("{point}=kill"));
        daemon.client().update(&id, limits(700, 128)).unwrap_err();
        daemon.wait_ended();
        daemon.revive();
        let kept = history(&daemon, &id);
        let last = kept.last().unwrap();
        assert!(has(last, "memory", "64Mi", "128Mi") && has(last, "cpu", "500m", "700m"), "{last:#}");
        assert_eq!((&last["outcome"], &last["reason"]), (&json!(outcome), &json!("recovery")));
        assert_eq!(last["caller"]["pid"], std::process::id());
        daemon.kill9();
    }
    daemon.revive();
    let kept = history(&daemon, &id);
    assert_eq!((kept.len(), &kept[0]["outcome"], &kept[0]["reason"]), (3, &json!("rolled_back"), &json!("record")));
}

#[test]
fn a_foreign_write_is_noted_once_with_the_resize_before_it() {
    let (mut daemon, _pod, id) = start();
    daemon.client().update(&id, limits(600, 64)).unwrap();
    let (name, foreign) =
        if kernel_state::is_v2() { ("cpu.max", "20000 100000") } else { ("cpu.cfs_quota_us", "20000") };
    fs::write(file(&daemon, &id, name), foreign).unwrap();
    for _ in 0..2 {
        daemon.client().in_force(&id);
        let kept = history(&daemon, &id);
        let drift = kept[0]["drift"].as_array().unwrap();
        assert_eq!((kept.len(), drift.len()), (1, 1), "{kept:#?}");
        assert_eq!((&drift[0]["file"], &drift[0]["found"]), (&json!(name), &json!(foreign)));
        daemon.restart();
    }
    assert!(daemon.env.verb_ok("history", &[&id]).contains(&format!("then {name} changed outside crisp to {foreign}")));
}

#[test]
fn an_oom_kill_in_the_minute_after_is_noted() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // Twice the memory of the limit, after the resize.
    let script = "while [ ! -e /go ]; do sleep 0.1; done; x=$(head -c 64000000 /dev/zero | tr '\\0' a); echo $x";
    let mut config = container("main", &["sh", "-c", script]);
    config.linux.as_mut().unwrap().resources = Some(limits(1000, 64));
    let id = client.run_config(&pod, config);
    client.update(&id, limits(1000, 32)).unwrap();
    client.try_exec(&id, &["touch", "/go"], 5).unwrap();
    let kills = || history(&daemon, &id)[0]["oom_kills"].as_u64().filter(|kills| *kills > 0);
    wait_for("the kill in the history", seconds(20), kills);
    let table = daemon.env.verb_ok("history", &[&id]);
    assert!(table.contains("OOM-killed") && table.contains("memory 64Mi → 32Mi"), "{table}");
}

#[test]
fn the_newest_64_entries_are_kept_and_a_damaged_file_is_renamed() {
    let (mut daemon, pod, id) = start();
    let client = daemon.client();
    for number in 0..150 {
        client.update(&id, limits(500 + number % 2 * 10, 64 + number)).unwrap();
    }
    let kept = history(&daemon, &id);
    assert_eq!(kept.len(), 64);
    assert!(has(&kept[63], "memory", "212Mi", "213Mi"), "{:#}", kept[63]);
    let dir = daemon.env.state().join("pods").join(&pod.id);
    let size = |name: &str| fs::metadata(dir.join(name)).unwrap().len();
    assert!(size("resize-history.jsonl") <= 64 << 10 && size("resize-history.1.jsonl") <= 64 << 10);
    daemon.kill9();
    for name in ["resize-history.jsonl", "resize-history.1.jsonl"] {
        fs::write(dir.join(name), "damaged\n").unwrap();
    }
    daemon.revive();
    daemon.client().update(&id, limits(500, 64)).unwrap();
    let kept = history(&daemon, &id);
    assert_eq!(kept.len(), 1, "{kept:#?}");
    assert!(dir.join("resize-history.damaged.jsonl").exists());
    assert!(daemon.env.read_log().contains("cannot read the history of resizes"));
}

#[test]
fn a_follower_gets_earlier_and_later_resizes_of_its_container() {
    let (daemon, pod, id) = start();
    let client = daemon.client();
    let other = client.run_limited(&pod, "other", limits(500, 64));
    client.update(&id, limits(510, 64)).unwrap();
    let mut command = daemon.env.verb("history", &[&id, "--follow", "--json"]);
    let mut follower = Follower(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(follower.0.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert!(has(&next(), "cpu", "500m", "510m"));
    client.update(&other, limits(520, 64)).unwrap();
    client.update(&id, limits(530, 64)).unwrap();
    assert!(has(&next(), "cpu", "510m", "530m"));
    // The stream ends with the daemon.
    drop(daemon);
    assert!(lines.next().is_none());
}

#[test]
fn the_name_of_a_hostile_program_is_escaped() {
    let (daemon, _pod, id) = start();
    let name = "\u{1b}[2Jx\n\"é";
    let link = daemon.env.dir().join(name);
    let command = daemon.env.verb("resize", &[&id, "--memory", "96Mi"]);
    std::os::unix::fs::symlink(command.get_program(), &link).unwrap();
    let output = std::process::Command::new(&link).args(command.get_args()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let kept = history(&daemon, &id);
    assert_eq!(kept[0]["caller"]["program"], r#"\x1b[2Jx\n\"\xc3\xa9"#, "{kept:#?}");
    let shown = daemon.env.verb_ok("history", &[&id]) + &daemon.env.read_log();
    assert!(!shown.contains('\u{1b}'), "{shown}");
}
