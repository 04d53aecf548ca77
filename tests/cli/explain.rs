//! `crisp explain`: requested, applied and actual limits, drift, and targets that are refused.

use std::fs;

use serde_json::Value;

use crate::support::harness::Daemon;
use crate::support::kernel_state;
use crate::update::{file, limits};

fn explained(daemon: &Daemon, target: &str) -> Value {
    serde_json::from_str(&daemon.env.verb_ok("explain", &[target, "--json"])).unwrap()
}

fn row<'a>(view: &'a Value, file: &str) -> &'a Value {
    view["files"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["file"] == file)
        .unwrap_or_else(|| panic!("{file}: {view:#}"))
}

fn memory_file() -> &'static str {
    if kernel_state::is_v2() { "memory.max" } else { "memory.limit_in_bytes" }
}

#[test]
fn requested_applied_and_actual_limits_are_shown_with_their_file() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("shop");
    let id = daemon.client().run_limited(&pod, "web", limits(500, 64));
    for target in ["web", "shop/web", &id, &id[..8]] {
        let view = explained(&daemon, target);
        assert_eq!(
            (&view["kind"], &view["id"], &view["state"]),
            (&"container".into(), &id.clone().into(), &"running".into())
        );
        let memory = row(&view, memory_file());
        assert_eq!((&memory["asked"], &memory["applied"]), (&"64Mi".into(), &"67108864".into()), "{memory:#}");
        let path = memory["path"].as_str().unwrap();
        assert_eq!(memory["actual"], fs::read_to_string(path).unwrap().trim(), "{path}");
        assert!(path.contains(&id) && memory["drift"] == false, "{memory:#}");
    }
    let text = daemon.env.verb_ok("explain", &["web"]);
    assert!(text.contains("500m") && text.contains(memory_file()) && text.contains("running, pid"), "{text}");
}

#[test]
fn drift_is_marked() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("shop");
    let id = daemon.client().run_limited(&pod, "web", limits(500, 64));
    fs::write(file(&daemon, &id, memory_file()), (32 << 20).to_string()).unwrap();
    let view = explained(&daemon, "web");
    let memory = row(&view, memory_file());
    assert_eq!((&memory["drift"], &memory["actual"]), (&true.into(), &"33554432".into()), "{memory:#}");
    let text = daemon.env.verb_ok("explain", &["web"]);
    assert!(text.lines().any(|line| line.contains("32Mi") && line.contains("changed outside crisp")), "{text}");
}

#[test]
fn a_pod_is_explained_with_its_owner_and_its_containers() {
    let daemon = Daemon::start();
    let ours = daemon.run_pod_with("ours", |config| {
        config.linux.get_or_insert_default().resources = Some(limits(700, 128));
    });
    daemon.client().run_limited(&ours, "web", limits(500, 64));
    let parent = daemon.env.pod_cgroup("given");
    let given = daemon.run_pod_with("given", |config| {
        config.linux.get_or_insert_default().cgroup_parent = parent.clone();
    });
    let view = explained(&daemon, "tests/ours");
    assert_eq!((&view["kind"], &view["owner"]), (&"pod".into(), &"crisp".into()));
    assert_eq!(row(&view, memory_file())["asked"], "128Mi");
    assert_eq!(view["containers"][0]["name"], "web");
    assert_eq!(row(&view["containers"][0], memory_file())["asked"], "64Mi");
    let view = explained(&daemon, "given");
    assert_eq!((&view["owner"], &view["cgroup"]), (&"client".into(), &parent.clone().into()));
    assert!(
        daemon.env.verb_ok("explain", &["given"]).contains("managed by the client: crisp never changes its limits")
    );
    daemon.client().stop_pod(&given.id).unwrap();
    daemon.client().remove_pod(&given.id).unwrap();
    daemon.env.remove_pod_cgroup(&parent);
}

#[test]
fn created_and_exited_containers_are_explained() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("shop");
    let created = client.try_create(&pod, crate::update::limited("early", limits(500, 64))).unwrap();
    let view = explained(&daemon, "early");
    assert_eq!((&view["id"], &view["state"]), (&created.into(), &"created".into()));
    assert_eq!(row(&view, memory_file())["actual"], "67108864");
    client.script(&pod, "late", "exit 3");
    let view = explained(&daemon, "late");
    assert_eq!((&view["state"], &view["ended"]["code"]), (&"exited".into(), &3.into()));
    assert!(daemon.env.verb_ok("explain", &["late"]).contains("exited with code 3"));
}

#[test]
fn missing_and_ambiguous_targets_are_refused() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.run_pod("a"), daemon.run_pod("b"));
    let (x, y) = (daemon.client().run_idle(&a, "web"), daemon.client().run_idle(&b, "web"));
    let words = daemon.env.verb_fails("explain", &["web"]);
    assert!(words.contains(&x[..12]) && words.contains(&y[..12]), "{words}");
    assert!(words.contains("tests/a/web") && words.contains("tests/b/web"), "{words}");
    assert_eq!(explained(&daemon, "b/web")["id"], y);
    assert_eq!(explained(&daemon, "tests/b/web")["id"], y);
    let words = daemon.env.verb_fails("explain", &["absent"]);
    assert!(words.contains("\"absent\" not found; `crisp explain` lists all"), "{words}");
}

#[test]
fn the_limit_of_the_pod_that_binds_a_container_is_named() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod_with("shop", |config| {
        config.linux.get_or_insert_default().resources = Some(limits(700, 40));
    });
    daemon.client().run_limited(&pod, "web", limits(500, 500));
    let view = explained(&daemon, "web");
    let cgroup = explained(&daemon, "shop")["cgroup"].as_str().unwrap().to_owned();
    let memory = &view["effective"]["memory"];
    assert_eq!((&memory["limit"], &memory["set_by"]["kind"]), (&(40 << 20).into(), &"pod".into()), "{view:#}");
    assert_eq!(memory["set_by"]["cgroup"], cgroup.as_str(), "{view:#}");
    assert_eq!(row(&view, memory_file())["actual"], (500 << 20).to_string(), "the file is shown as it is");
    let text = daemon.env.verb_ok("explain", &["web"]);
    let line = text.lines().find(|line| line.starts_with("memory: effective")).unwrap();
    assert!(line.starts_with(&format!("memory: effective 40Mi, set by the pod cgroup {cgroup}, ")), "{text}");
    assert!(line.ends_with(" free") && text.contains("cpu: effective 500m, set by its own cgroup"), "{text}");
}
