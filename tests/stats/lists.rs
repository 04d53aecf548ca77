//! Lists of stats: their filters, the size of their pieces and their latency.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cri_api::v1;
use tonic::Code;

use super::{ids, names, pod_names, value};
use crate::support::client::{Client, IDLE, Pod, container};
use crate::support::harness::{Daemon, seconds, slow, times};

#[test]
fn a_list_has_containers_with_processes_and_filters_apply() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (front, back) = (daemon.run_pod("front"), daemon.run_pod("back"));
    let mut config = container("labelled", &IDLE);
    config.labels = BTreeMap::from([("app".into(), "shop".into()), ("tier".into(), "1".into())]);
    let labelled = client.run_config(&front, config);
    let other = client.run_idle(&front, "other");
    let far = client.run_idle(&back, "far");
    client.create(&back, "created", &["true"]);
    client.script(&back, "exited", "true");

    let all = client.list_stats(None);
    assert_eq!(names(&all), ["created", "far", "labelled", "other"]);
    assert!(all.iter().all(|stats| stats.memory.as_ref().is_some_and(|memory| memory.usage_bytes.is_some())));
    for listed in &all {
        let single = client.container_stats(&listed.attributes.as_ref().unwrap().id);
        assert_eq!((&single.attributes, single.swap.is_some()), (&listed.attributes, listed.swap.is_some()));
        let bytes = |stats: &v1::ContainerStats| stats.writable_layer.as_ref().map(|layer| value(&layer.used_bytes));
        assert!(bytes(listed).is_none() || bytes(&single) == bytes(listed));
        let time = |stats: &v1::ContainerStats| value(&stats.cpu.as_ref().unwrap().usage_core_nano_seconds);
        assert!(time(&single) >= time(listed));
    }

    let none = v1::ContainerStatsFilter::default;
    let found = |filter| names(&client.list_stats(Some(filter)));
    assert_eq!(found(none()).len(), 4);
    assert_eq!(found(v1::ContainerStatsFilter { id: far.clone(), ..none() }), ["far"]);
    assert_eq!(found(v1::ContainerStatsFilter { id: other[..20].to_owned(), ..none() }), ["other"]);
    assert!(found(v1::ContainerStatsFilter { id: "0".repeat(64), ..none() }).is_empty());
    let of = |pod: &Pod| v1::ContainerStatsFilter { pod_sandbox_id: pod.id.clone(), ..none() };
    assert_eq!(found(of(&front)), ["labelled", "other"]);
    assert_eq!(
        found(v1::ContainerStatsFilter { pod_sandbox_id: back.id[..13].to_owned(), ..none() }),
        ["created", "far"]
    );
    assert!(found(v1::ContainerStatsFilter { id: labelled, ..of(&back) }).is_empty());
    let with = |key: &str, value: &str| v1::ContainerStatsFilter {
        label_selector: BTreeMap::from([(key.to_owned(), value.to_owned())]),
        ..none()
    };
    assert_eq!(found(with("app", "shop")), ["labelled"]);
    assert!(found(with("app", "other")).is_empty());
}

#[test]
fn a_stream_has_the_items_of_the_list_in_bounded_messages() {
    let daemon = Daemon::start();
    let client = daemon.client();
    assert!(client.stream_stats(None).is_empty() && client.stream_pod_stats(None).is_empty());
    let long = |map: &mut BTreeMap<String, String>| map.insert("long".into(), "x".repeat(600 << 10));
    let mut pods = Vec::new();
    for name in ["a", "b", "c"] {
        let pod = daemon.run_pod_with(name, |config| drop(long(&mut config.annotations)));
        let mut config = container(name, &["sleep", "100000"]);
        long(&mut config.annotations);
        client.run_config(&pod, config);
        pods.push(pod);
    }
    let streamed = client.stream_stats(None);
    assert_eq!(streamed.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(ids(&streamed.concat()), ids(&client.list_stats(None)));
    let one = v1::ContainerStatsFilter { pod_sandbox_id: pods[1].id.clone(), ..Default::default() };
    assert_eq!(names(&client.stream_stats(Some(one)).concat()), ["b"]);
    let streamed = client.stream_pod_stats(None);
    assert_eq!(streamed.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(pod_names(&streamed.concat()), ["a", "b", "c"]);
    let one = v1::PodSandboxStatsFilter { id: pods[2].id.clone(), ..Default::default() };
    assert_eq!(pod_names(&client.stream_pod_stats(Some(one)).concat()), ["c"]);
}

#[test]
fn stats_of_a_missing_object_return_the_right_code() {
    let daemon = Daemon::start();
    let client = daemon.client();
    for (id, code) in [("", Code::InvalidArgument), ("0123", Code::NotFound), (&"f".repeat(64), Code::NotFound)] {
        assert_eq!(client.try_container_stats(id).unwrap_err().code(), code, "{id:?}");
        assert_eq!(client.try_pod_stats(id).unwrap_err().code(), code, "{id:?}");
    }
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    assert_eq!(client.container_stats(&id[..13]).attributes.unwrap().id, id);
    assert_eq!(client.try_pod_stats(&pod.id[..13]).unwrap().attributes.unwrap().id, pod.id);
    client.remove(&id).unwrap();
    assert_eq!(client.try_container_stats(&id).unwrap_err().code(), Code::NotFound);
}

#[test]
fn stats_wait_for_no_change_and_a_new_daemon_has_them_at_once() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run(&pod, "main", &["sh", "-c", "trap '' TERM; echo idle; while :; do sleep 1; done"]);
    daemon.client().wait_printed(&id, "idle");
    let socket = daemon.env.socket();
    std::thread::scope(|threads| {
        let stopping = threads.spawn(|| Client::connect(&socket).stop(&id, 3 * i64::from(slow())));
        std::thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        assert!(daemon.client().container_stats(&id).memory.is_some());
        assert_eq!(daemon.client().list_stats(None).len(), 1);
        assert_eq!(daemon.client().pod_stats(&pod.id).containers.len(), 1);
        assert!(begin.elapsed() < seconds(2), "{:?}", begin.elapsed());
        stopping.join().unwrap().unwrap();
    });
    let id = daemon.client().run_idle(&pod, "second");
    let before = daemon.client().container_stats(&id).cpu.unwrap();
    daemon.restart();
    let stats = daemon.client().container_stats(&id);
    let cpu = stats.cpu.unwrap();
    assert!(value(&cpu.usage_core_nano_seconds) >= value(&before.usage_core_nano_seconds));
    assert_eq!(cpu.usage_nano_cores, None, "a new daemon has nothing to compare with");
    assert!(value(&daemon.client().writable_layer(&id).inodes_used) > 0);
}

#[test]
fn stats_of_fifty_containers_are_immediate_under_load() {
    let daemon = Daemon::start();
    let count = times(50, 10);
    let pods: Vec<Pod> = (0..count.div_ceil(2)).map(|number| daemon.run_pod(&format!("pod-{number}"))).collect();
    for number in 0..count {
        let config = container(&format!("c{number}"), &["sleep", "100000"]);
        daemon.client().run_config(&pods[number / 2], config);
    }
    let socket = daemon.env.socket();
    let spare = daemon.run_pod("spare");
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                let client = Client::connect(&socket);
                for _ in 0..times(40, 3) {
                    let all = client.list_stats(None);
                    let lasting = all.iter().filter(|stats| {
                        stats.attributes.as_ref().unwrap().metadata.as_ref().unwrap().name.starts_with('c')
                    });
                    assert_eq!(lasting.count(), count);
                    assert!(all.iter().all(|stats| stats.memory.is_some() && stats.cpu.is_some()));
                    let pods = client.list_pod_stats(None);
                    assert_eq!(pods.iter().map(|pod| pod.linux.as_ref().unwrap().containers.len()).max(), Some(2));
                }
            });
        }
        // Meanwhile others come and go.
        let client = daemon.client();
        for number in 0..times(20, 2) {
            let ended = client.script(&spare, &format!("spare-{number}"), "echo x > /file");
            client.remove(&ended.id).unwrap();
        }
    });
    // The fastest response shows the time of the work alone: it includes no walk through a file system.
    let fastest = (0..times(30, 3)).map(|_| {
        let begin = Instant::now();
        assert_eq!(daemon.client().list_stats(None).len(), count);
        begin.elapsed()
    });
    let fastest = fastest.min().unwrap();
    assert!(fastest < Duration::from_millis(40) * slow(), "{fastest:?}");
}
