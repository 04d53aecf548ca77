//! Resizes of many containers at once, while clients read statuses and statistics and run commands in them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::support::harness::times;

#[test]
fn containers_have_their_last_requested_limits_after_many_concurrent_changes() {
    let daemon = Daemon::start();
    let (pods, each) = (times(10, 3), times(5, 2));
    let mut ids = Vec::new();
    for pod in 0..pods {
        let pod = daemon.run_pod(&format!("pod{pod}"));
        for name in 0..each {
            ids.push(daemon.client().run_limited(&pod, &format!("c{name}"), limits(100, 64)));
        }
    }
    let before: Vec<Vec<i32>> = ids.iter().map(|id| daemon.pids(id)).collect();
    let over = AtomicBool::new(false);
    let socket = daemon.env.socket();
    thread::scope(|scope| {
        let lookers = [
            scope.spawn(|| {
                let client = Client::connect(&socket);
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(client.containers().len(), ids.len());
                    ids.iter().step_by(7).for_each(|id| assert_whole(&client.in_force(id)));
                    let request = v1::ListContainerStatsRequest::default();
                    let stats =
                        client.call(|mut c| async move { c.list_container_stats(request).await }).unwrap().stats;
                    assert_eq!(stats.len(), ids.len());
                }
            }),
            scope.spawn(|| {
                let client = Client::connect(&socket);
                for id in ids.iter().cycle() {
                    assert_eq!(client.exec(id, &["true"]).code, 0);
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }),
        ];
        let (ids, socket) = (&ids, &socket);
        let changers: Vec<_> = ids
            .chunks(ids.len().div_ceil(4))
            .map(|part| {
                scope.spawn(move || {
                    let client = Client::connect(socket);
                    for round in 0..i64::try_from(times(20, 4)).unwrap() {
                        for (at, id) in part.iter().enumerate() {
                            let at = i64::try_from(at).unwrap();
                            client
                                .update(id, limits(100 + (round * 37 + at * 11) % 400, 48 + (round + at) % 64))
                                .unwrap();
                        }
                    }
                    for id in part {
                        client.update(id, last(ids, id)).unwrap();
                    }
                })
            })
            .collect();
        let changed: Vec<_> = changers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        let looked: Vec<_> = lookers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        assert!(changed.iter().chain(&looked).all(Result::is_ok));
    });
    assert!(!daemon.env.read_log().contains("changed outside crisp"), "only crisp changed limits");
    for (id, pids) in ids.iter().zip(before) {
        let asked = last(&ids, id);
        assert_limits(&daemon, id, asked.cpu_quota / 100, asked.memory_limit_in_bytes / MIB);
        assert_eq!((daemon.pids(id), oom_kills(&daemon, id).as_str()), (pids, "0"));
        assert_eq!(daemon.client().container_info(id)["resources"]["drift"], serde_json::json!([]));
    }
}

/// The last requested limits of each container.
fn last(ids: &[String], id: &str) -> v1::LinuxContainerResources {
    let at = i64::try_from(ids.iter().position(|known| known == id).unwrap()).unwrap();
    limits(100 + at * 3, 50 + at)
}

/// All or nothing: the kubelet takes a gap for "as before".
fn assert_whole(shown: &v1::LinuxContainerResources) {
    assert!(shown.cpu_period > 0 && shown.cpu_quota > 0 && shown.cpu_shares >= 2 && shown.memory_limit_in_bytes > 0);
}

#[test]
fn concurrent_changes_of_one_container_end_with_the_values_of_one() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_limited(&pod, "main", limits(100, 64));
    let socket = daemon.env.socket();
    thread::scope(|scope| {
        for change in 1..=8 {
            let (socket, id) = (&socket, &id);
            scope.spawn(move || {
                let client = Client::connect(socket);
                for _ in 0..times(25, 5) {
                    client.update(id, limits(change * 100, 64 + change)).unwrap();
                }
            });
        }
    });
    let shown = daemon.client().in_force(&id);
    let change = shown.cpu_quota / 10_000;
    assert!((1..=8).contains(&change));
    assert_limits(&daemon, &id, change * 100, 64 + change);
}
