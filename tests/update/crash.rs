//! A daemon that is killed between any two steps of a resize.

use super::*;
use crate::support::env::TestEnv;

/// Kills the daemon at `point` of a change from `from` to `to`, and returns whether the next daemon
/// finds the change applied. None where the change has no such point.
fn killed_at(point: &str, from: (i64, i64), to: (i64, i64)) -> Option<bool> {
    let mut daemon = Daemon::with_failpoints(TestEnv::new(), &format!("{point}=kill"));
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_limited(&pod, "main", limits(from.0, from.1));
    let pids = daemon.pids(&id);
    if daemon.client().update(&id, limits(to.0, to.1)).is_ok() {
        return None;
    }
    daemon.wait_ended();
    daemon.revive();
    assert_eq!(daemon.pids(&id), pids, "nothing was restarted");
    let made = daemon.client().in_force(&id).cpu_quota == to.0 * 100;
    let now = if made { to } else { from };
    assert_limits(&daemon, &id, now.0, now.1);
    let info = daemon.client().container_info(&id);
    assert_eq!(info["resources"]["drift"], serde_json::json!([]), "{point}");
    // The request can be repeated, and is then applied.
    daemon.client().update(&id, limits(to.0, to.1)).unwrap();
    assert_limits(&daemon, &id, to.0, to.1);
    assert_eq!(oom_kills(&daemon, &id), "0");
    Some(made)
}

#[test]
fn an_interrupted_change_is_finished_or_undone() {
    for (from, to) in [((500, 64), (700, 128)), ((700, 128), (500, 64))] {
        assert_eq!(killed_at("resize.journal", from, to), Some(false));
        let mut writes = 0;
        while let Some(made) = killed_at(&format!("resize.write.{writes}"), from, to) {
            assert!(!made, "before write {writes}");
            writes += 1;
        }
        assert!(writes >= 3, "{writes} writes");
        assert_eq!(killed_at("resize.applied", from, to), Some(true));
        assert_eq!(killed_at("resize.recorded", from, to), Some(true));
    }
}

#[test]
fn a_half_written_journal_changes_nothing() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_limited(&pod, "main", limits(500, 64));
    let dir = daemon.client().container_info(&id)["directory"].as_str().unwrap().to_owned();
    for text in ["", "{\"asked\":{", "[]"] {
        daemon.kill9();
        fs::write(format!("{dir}/resize-journal.json"), text).unwrap();
        daemon.revive();
        assert_limits(&daemon, &id, 500, 64);
        assert!(!fs::exists(format!("{dir}/resize-journal.json")).unwrap(), "the journal was removed");
        // The next journal replaces it, and is closed.
        daemon.client().update(&id, limits(700, 64)).unwrap();
        daemon.client().update(&id, limits(500, 64)).unwrap();
    }
}

#[test]
fn a_restart_keeps_all_values_of_a_change() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_limited(&pod, "main", limits(500, 64));
    let mut odd = limits(15, 96);
    // No weight of v2 can be converted back to these shares.
    odd.cpu_shares = 257;
    odd.cpu_quota = 1500;
    daemon.client().update(&id, odd.clone()).unwrap();
    let before = daemon.client().in_force(&id);
    assert_eq!((before.cpu_shares, before.cpu_quota), (257, 1500));
    daemon.restart();
    assert_eq!(daemon.client().in_force(&id), before);
}
