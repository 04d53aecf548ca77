//! What pods and containers use, against what the kernel says.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tonic::Code;
use wire::v1;

use crate::client::{Asked, Client, Pod, container, pod_namespaces, security};
use crate::harness::{Daemon, seconds, slow, times, wait_for};
use crate::kernel;

const MIB: u64 = 1 << 20;

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

fn value(number: &Option<v1::UInt64Value>) -> u64 {
    number.as_ref().expect("this number is there").value
}

impl Client {
    fn try_container_stats(&self, id: &str) -> Asked<v1::ContainerStats> {
        let request = v1::ContainerStatsRequest { container_id: id.to_owned() };
        self.call(|mut c| async move { c.container_stats(request).await }).map(|answer| answer.stats.unwrap())
    }

    fn container_stats(&self, id: &str) -> v1::ContainerStats {
        self.try_container_stats(id).unwrap()
    }

    fn list_stats(&self, filter: Option<v1::ContainerStatsFilter>) -> Vec<v1::ContainerStats> {
        let request = v1::ListContainerStatsRequest { filter };
        self.call(|mut c| async move { c.list_container_stats(request).await }).unwrap().stats
    }

    /// The pieces that a stream comes in.
    fn stream_stats(&self, filter: Option<v1::ContainerStatsFilter>) -> Vec<Vec<v1::ContainerStats>> {
        let request = v1::StreamContainerStatsRequest { filter };
        let read = |mut c: v1::runtime_service_client::RuntimeServiceClient<_>| async move {
            pieces(c.stream_container_stats(request).await?, |answer| answer.container_stats).await
        };
        self.call(read).unwrap()
    }

    fn try_pod_stats(&self, id: &str) -> Asked<v1::PodSandboxStats> {
        let request = v1::PodSandboxStatsRequest { pod_sandbox_id: id.to_owned() };
        self.call(|mut c| async move { c.pod_sandbox_stats(request).await }).map(|answer| answer.stats.unwrap())
    }

    fn pod_stats(&self, id: &str) -> v1::LinuxPodSandboxStats {
        self.try_pod_stats(id).unwrap().linux.expect("the kubelet looks into it unchecked")
    }

    fn list_pod_stats(&self, filter: Option<v1::PodSandboxStatsFilter>) -> Vec<v1::PodSandboxStats> {
        let request = v1::ListPodSandboxStatsRequest { filter };
        self.call(|mut c| async move { c.list_pod_sandbox_stats(request).await }).unwrap().stats
    }

    fn stream_pod_stats(&self, filter: Option<v1::PodSandboxStatsFilter>) -> Vec<Vec<v1::PodSandboxStats>> {
        let request = v1::StreamPodSandboxStatsRequest { filter };
        let read = |mut c: v1::runtime_service_client::RuntimeServiceClient<_>| async move {
            pieces(c.stream_pod_sandbox_stats(request).await?, |answer| answer.pod_sandbox_stats).await
        };
        self.call(read).unwrap()
    }
}

async fn pieces<R, T>(
    answer: tonic::Response<tonic::Streaming<R>>,
    open: fn(R) -> Vec<T>,
) -> Asked<tonic::Response<Vec<Vec<T>>>> {
    let (mut stream, mut all) = (answer.into_inner(), Vec::new());
    while let Some(message) = stream.message().await? {
        all.push(open(message));
    }
    Ok(tonic::Response::new(all))
}

fn ids(stats: &[v1::ContainerStats]) -> Vec<String> {
    stats.iter().map(|stats| stats.attributes.as_ref().unwrap().id.clone()).collect()
}

fn names(stats: &[v1::ContainerStats]) -> Vec<String> {
    let name = |stats: &v1::ContainerStats| stats.attributes.clone().unwrap().metadata.unwrap().name;
    let mut names: Vec<String> = stats.iter().map(name).collect();
    names.sort();
    names
}

fn pod_names(stats: &[v1::PodSandboxStats]) -> Vec<String> {
    let name = |stats: &v1::PodSandboxStats| stats.attributes.clone().unwrap().metadata.unwrap().name;
    let mut names: Vec<String> = stats.iter().map(name).collect();
    names.sort();
    names
}

/// The directory in which the kernel has `file` of a container's cgroup.
fn dir_with(daemon: &Daemon, container: &str, file: &str) -> Option<PathBuf> {
    let dirs = kernel::cgroups_under(daemon.ground.cgroup());
    dirs.into_iter().find(|dir| dir.ends_with(container) && dir.join(file).exists())
}

fn kernel_number(daemon: &Daemon, container: &str, files: [&str; 2]) -> u64 {
    let file = files[usize::from(kernel::is_v2())];
    let dir = dir_with(daemon, container, file).unwrap();
    fs::read_to_string(dir.join(file)).unwrap().trim().parse().unwrap()
}

#[test]
fn a_running_container_has_every_number_that_the_kernel_has() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &crate::client::IDLE);
    config.labels.insert("a".into(), "b".into());
    config.annotations.insert("c".into(), "d".into());
    config.linux.as_mut().unwrap().resources =
        Some(v1::LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() });
    let begin = now();
    let id = client.run_config(&pod, config.clone());
    client.wait_printed(&id, "idle");
    let stats = client.container_stats(&id);
    let known = v1::ContainerAttributes {
        id: id.clone(),
        metadata: config.metadata,
        labels: config.labels,
        annotations: config.annotations,
    };
    assert_eq!(stats.attributes, Some(known));

    let in_time = |timestamp: i64| assert!((begin..=now()).contains(&timestamp), "{timestamp}");
    let cpu = stats.cpu.unwrap();
    in_time(cpu.timestamp);
    assert!(value(&cpu.usage_core_nano_seconds) > 0);
    assert_eq!(cpu.usage_nano_cores, None, "there is nothing to compare the first reading with");
    let memory = stats.memory.unwrap();
    in_time(memory.timestamp);
    let (usage, working_set) = (value(&memory.usage_bytes), value(&memory.working_set_bytes));
    let kernels = kernel_number(&daemon, &id, ["memory.usage_in_bytes", "memory.current"]);
    assert!(usage > 0 && usage.abs_diff(kernels) <= MIB, "{usage} is not {kernels}");
    assert!(working_set <= usage);
    assert_eq!(value(&memory.available_bytes), 64 * MIB - working_set);
    assert!(memory.rss_bytes.is_some() && memory.page_faults.is_some() && memory.major_page_faults.is_some());
    let disk = stats.writable_layer.expect("the first answer has it already");
    in_time(disk.timestamp);
    assert!(PathBuf::from(disk.fs_id.unwrap().mountpoint).is_dir());
    assert!(value(&disk.inodes_used) > 0 && disk.used_bytes.is_some());

    // Kernels differ in these: what one has is told, and nothing else.
    let has_swap = ["memory.memsw.usage_in_bytes", "memory.swap.current"].map(|file| dir_with(&daemon, &id, file));
    assert_eq!(stats.swap.is_some(), has_swap.iter().any(Option::is_some));
    if let Some(swap) = stats.swap {
        in_time(swap.timestamp);
        assert_eq!(value(&swap.swap_usage_bytes), 0);
    }
    let has = |file: &str| dir_with(&daemon, &id, file).is_some();
    assert_eq!((cpu.psi.is_some(), memory.psi.is_some()), (has("cpu.pressure"), has("memory.pressure")));
    assert_eq!(stats.io.as_ref().is_some_and(|io| io.psi.is_some()), has("io.pressure"));
    if let Some(psi) = cpu.psi {
        assert!(psi.some.is_some() && psi.full.is_some(), "{psi:?}");
    }
}

#[test]
fn processor_time_grows_under_load_and_its_rate_is_told() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let busy = client.run(&pod, "busy", &["sh", "-c", "while :; do :; done"]);
    let idle = client.run_idle(&pod, "idle");
    let time = |stats: &v1::ContainerStats| value(&stats.cpu.as_ref().unwrap().usage_core_nano_seconds);
    // This reads both containers too.
    let before = client.pod_stats(&pod.id);
    assert_eq!(before.cpu.as_ref().unwrap().usage_nano_cores, None);
    std::thread::sleep(Duration::from_millis(200));
    let first = client.container_stats(&busy);
    std::thread::sleep(Duration::from_millis(1500));
    let second = client.container_stats(&busy);
    assert!(time(&second) > time(&first) + 50_000_000, "{first:?} {second:?}");
    let (before, after) = (first.cpu.unwrap(), second.cpu.unwrap());
    let passed = u64::try_from(after.timestamp - before.timestamp).unwrap();
    let expected = (time(&second) - time(&first)) * 1000 / (passed / 1_000_000);
    let told = value(&after.usage_nano_cores);
    // Read within a moment of each other, not at the same one.
    assert!(told.abs_diff(expected) < expected / 5 + 10_000_000, "{told} is not {expected}");
    // Those who ask too soon are told the same once more.
    assert_eq!(value(&client.container_stats(&busy).cpu.unwrap().usage_nano_cores), told);

    let idle_after = client.container_stats(&idle);
    assert!(value(&idle_after.cpu.as_ref().unwrap().usage_nano_cores) < told / 2);
    let pod_after = client.pod_stats(&pod.id).cpu.unwrap();
    assert!(value(&pod_after.usage_nano_cores) > told / 2, "the pod has what its containers have");
    assert!(value(&pod_after.usage_core_nano_seconds) >= time(&second));
}

#[test]
fn memory_follows_what_a_container_takes_and_gives_back() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let memory = || client.container_stats(&id).memory.unwrap();
    let before = memory();
    assert_eq!(before.available_bytes, None, "without a limit");
    client.exec_script(&id, "dd if=/dev/zero of=/dev/shm/file bs=1M count=32 2> /dev/null");
    let full = memory();
    let grown = |after: &v1::MemoryUsage, before: &v1::MemoryUsage| {
        value(&after.usage_bytes).saturating_sub(value(&before.usage_bytes))
    };
    assert!(grown(&full, &before) >= 30 * MIB, "{before:?} {full:?}");
    assert!(value(&full.working_set_bytes) >= value(&before.working_set_bytes) + 30 * MIB);
    let pods = client.pod_stats(&pod.id).memory.unwrap();
    assert!(value(&pods.usage_bytes) >= 32 * MIB, "{pods:?}");
    client.exec_script(&id, "rm /dev/shm/file");
    wait_for("most of it to be given back", seconds(10), || (grown(&full, &memory()) > 24 * MIB).then_some(()));
}

#[test]
fn anonymous_memory_and_page_faults_are_told() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // The shell holds it all in one long string.
    let script = "x=$(yes 0123456789abcdef | head -c 16000000); echo full; sleep 100000 & wait";
    let id = client.run(&pod, "main", &["sh", "-c", script]);
    client.wait_printed(&id, "full");
    // The kernel adds these up at its leisure.
    let memory = wait_for("the kernel to have counted", seconds(20), || {
        let memory = client.container_stats(&id).memory.unwrap();
        (value(&memory.rss_bytes) >= 15_000_000 && value(&memory.page_faults) > 0).then_some(memory)
    });
    assert!(value(&memory.usage_bytes) >= 15_000_000 && value(&memory.working_set_bytes) >= 15_000_000, "{memory:?}");
}

#[test]
fn the_writable_layer_grows_with_what_is_written_and_outlives_the_program() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let disk = || client.container_stats(&id).writable_layer.unwrap();
    let before = disk();
    client.exec_script(
        &id,
        "dd if=/dev/zero of=/big bs=1M count=8 2> /dev/null; ln /big /name; mkdir /dir; touch /dir/a /dir/b",
    );
    let after = wait_for("the layer to be measured again", seconds(30), || {
        Some(disk()).filter(|now| value(&now.used_bytes) >= value(&before.used_bytes) + 8 * MIB)
    });
    assert!(value(&after.used_bytes) < value(&before.used_bytes) + 9 * MIB, "two names, one file: {after:?}");
    assert_eq!(value(&after.inodes_used), value(&before.inodes_used) + 4);
    assert!(after.timestamp > before.timestamp);
    assert_eq!(after.fs_id, before.fs_id);
    client.stop(&id, 5).unwrap();
    let ended = client.container_stats(&id);
    assert!(value(&ended.writable_layer.unwrap().used_bytes) >= 8 * MIB);
    assert!(client.list_stats(None).is_empty(), "but lists have only those that use something");
}

#[test]
fn a_list_has_what_lives_and_the_filters_narrow_it() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (front, back) = (daemon.run_pod("front"), daemon.run_pod("back"));
    let mut config = container("labelled", &crate::client::IDLE);
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
        assert_eq!(single.writable_layer, listed.writable_layer);
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
fn a_stream_has_what_the_list_has_in_pieces_of_bounded_size() {
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
fn a_pods_stats_are_those_of_its_cgroup_and_of_its_containers() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let kubelets = daemon.ground.pod_cgroup("kubelets");
    let own = daemon.run_pod_with("own", |config| drop(config.labels.insert("whose".into(), "crisp".into())));
    let given = daemon.run_pod_with("given", |config| config.linux.as_mut().unwrap().cgroup_parent = kubelets.clone());
    for pod in [&own, &given] {
        for name in ["one", "two"] {
            client.run_idle(pod, name);
        }
        client.script(pod, "exited", "true");
        let answer = client.try_pod_stats(&pod.id).unwrap();
        let attributes = answer.attributes.unwrap();
        assert_eq!((attributes.id, attributes.metadata), (pod.id.clone(), pod.config.metadata.clone()));
        assert_eq!((attributes.labels, answer.windows), (pod.config.labels.clone(), None));
        let stats = answer.linux.unwrap();
        assert_eq!(names(&stats.containers), ["one", "two"]);
        // A shell and its sleep in each.
        assert_eq!(value(&stats.process.unwrap().process_count), 4);
        let memory = |stats: &Option<v1::MemoryUsage>| value(&stats.as_ref().unwrap().usage_bytes);
        let cpu = |stats: &Option<v1::CpuUsage>| value(&stats.as_ref().unwrap().usage_core_nano_seconds);
        // The containers are read after their pod.
        let of_containers: u64 = stats.containers.iter().map(|stats| memory(&stats.memory)).sum();
        assert!(memory(&stats.memory) + MIB >= of_containers, "{stats:?}");
        assert!(
            cpu(&stats.cpu) > 0 && cpu(&stats.cpu) + 500_000_000 > stats.containers.iter().map(|c| cpu(&c.cpu)).sum()
        );
        assert_eq!(stats.io.is_some(), stats.containers[0].io.is_some());
    }

    assert_eq!(pod_names(&client.list_pod_stats(None)), ["given", "own"]);
    let found = |filter| pod_names(&client.list_pod_stats(Some(filter)));
    let none = v1::PodSandboxStatsFilter::default;
    assert_eq!(found(v1::PodSandboxStatsFilter { id: given.id[..20].to_owned(), ..none() }), ["given"]);
    let labels = BTreeMap::from([("whose".to_owned(), "crisp".to_owned())]);
    assert_eq!(found(v1::PodSandboxStatsFilter { label_selector: labels, ..none() }), ["own"]);
    assert!(found(v1::PodSandboxStatsFilter { id: "0".repeat(64), ..none() }).is_empty());

    client.stop_pod(&own.id).unwrap();
    let stopped = client.pod_stats(&own.id);
    assert!(stopped.containers.is_empty() && stopped.network.is_none() && stopped.cpu.is_some(), "{stopped:?}");
    assert_eq!(pod_names(&client.list_pod_stats(None)), ["given"], "lists have only those that are ready");
    client.remove_pod(&given.id).unwrap();
    daemon.ground.remove_pod_cgroup(&kubelets);
}

#[test]
fn the_network_is_the_pods_own_and_the_hosts_is_nobodys() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &crate::client::IDLE);
    security(&mut config).capabilities =
        Some(v1::Capability { add_capabilities: vec!["NET_ADMIN".into()], ..Default::default() });
    let id = client.run_config(&pod, config);
    assert_eq!(client.pod_stats(&pod.id).network, None, "loopback alone");
    // Which kinds of interface there are depends on the kernel.
    let add = "ip link add eth0 type veth || ip link add eth0 type dummy; for i in $(ls /sys/class/net); do ip link set $i up; done";
    let added = client.exec(&id, &["sh", "-c", add]);
    assert_eq!(added.code, 0, "{added:?}");
    // The kernel looks for its neighbours by itself.
    let network = wait_for("something to be sent", seconds(20), || {
        let network = client.pod_stats(&pod.id).network.unwrap();
        (value(&network.default_interface.as_ref().unwrap().tx_bytes) > 0).then_some(network)
    });
    let default = network.default_interface.clone().unwrap();
    assert_eq!(default.name, "eth0");
    assert_eq!((value(&default.rx_errors), value(&default.tx_errors)), (0, 0));
    assert!(default.rx_bytes.is_some() && network.timestamp > 0);
    assert!(network.interfaces.iter().all(|other| other.name != "eth0" && other.name != "lo"), "{network:?}");

    let host = daemon.run_pod_with("host", |config| pod_namespaces(config).network = v1::NamespaceMode::Node.into());
    client.run_idle(&host, "main");
    assert_eq!(client.pod_stats(&host.id).network, None);
    let listed = client.list_pod_stats(None);
    let networks: Vec<bool> = listed.iter().map(|pod| pod.linux.as_ref().unwrap().network.is_some()).collect();
    assert_eq!(networks.iter().filter(|has| **has).count(), 1);
}

#[test]
fn stats_of_what_does_not_exist_have_the_right_code() {
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
fn stats_wait_for_no_work_and_a_new_daemon_has_them_at_once() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run(&pod, "main", &["sh", "-c", "trap '' TERM; echo idle; while :; do sleep 1; done"]);
    daemon.client().wait_printed(&id, "idle");
    let socket = daemon.ground.socket();
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
    assert!(stats.writable_layer.is_some());
}

#[test]
fn fifty_containers_are_told_of_at_once_whatever_else_happens() {
    let daemon = Daemon::start();
    let count = times(50, 10);
    let pods: Vec<Pod> = (0..count.div_ceil(2)).map(|number| daemon.run_pod(&format!("pod-{number}"))).collect();
    for number in 0..count {
        let config = container(&format!("c{number}"), &["sleep", "100000"]);
        daemon.client().run_config(&pods[number / 2], config);
    }
    let socket = daemon.ground.socket();
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
    // What the fastest of them takes is what the work takes: no walk through a file system is in it.
    let fastest = (0..times(30, 3)).map(|_| {
        let begin = Instant::now();
        assert_eq!(daemon.client().list_stats(None).len(), count);
        begin.elapsed()
    });
    let fastest = fastest.min().unwrap();
    assert!(fastest < Duration::from_millis(40) * slow(), "{fastest:?}");
}
