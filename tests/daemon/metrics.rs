//! Metrics over CRI, compared with the kernel's values.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::time::Instant;

use cri_api::v1;

use crate::support::client::{Asked, Client, IDLE, Pod, container};
use crate::support::harness::{Daemon, seconds, slow, times, wait_for};
use crate::support::kernel_state;

const MIB: u64 = 1 << 20;

/// The families that critest and the kubelet expect. Those of the second list depend on the kernel
/// or on block devices.
const ALWAYS: [&str; 41] = [
    "container_cpu_cfs_periods_total",
    "container_cpu_cfs_throttled_periods_total",
    "container_cpu_cfs_throttled_seconds_total",
    "container_cpu_system_seconds_total",
    "container_cpu_usage_seconds_total",
    "container_cpu_user_seconds_total",
    "container_file_descriptors",
    "container_fs_inodes_free",
    "container_fs_inodes_total",
    "container_fs_limit_bytes",
    "container_fs_usage_bytes",
    "container_last_seen",
    "container_memory_cache",
    "container_memory_failcnt",
    "container_memory_failures_total",
    "container_memory_kernel_usage",
    "container_memory_mapped_file",
    "container_memory_max_usage_bytes",
    "container_memory_rss",
    "container_memory_usage_bytes",
    "container_memory_working_set_bytes",
    "container_network_receive_bytes_total",
    "container_network_receive_errors_total",
    "container_network_receive_packets_dropped_total",
    "container_network_receive_packets_total",
    "container_network_transmit_bytes_total",
    "container_network_transmit_errors_total",
    "container_network_transmit_packets_dropped_total",
    "container_network_transmit_packets_total",
    "container_oom_events_total",
    "container_processes",
    "container_sockets",
    "container_spec_cpu_period",
    "container_spec_cpu_quota",
    "container_spec_cpu_shares",
    "container_spec_memory_limit_bytes",
    "container_spec_memory_reservation_limit_bytes",
    "container_start_time_seconds",
    "container_threads",
    "container_threads_max",
    "container_ulimits_soft",
];
const SOMETIMES: [&str; 15] = [
    "container_blkio_device_usage_total",
    "container_fs_reads_bytes_total",
    "container_fs_reads_total",
    "container_fs_writes_bytes_total",
    "container_fs_writes_total",
    "container_hugetlb_max_usage_bytes",
    "container_hugetlb_usage_bytes",
    "container_memory_swap",
    "container_pressure_cpu_stalled_seconds_total",
    "container_pressure_cpu_waiting_seconds_total",
    "container_pressure_io_stalled_seconds_total",
    "container_pressure_io_waiting_seconds_total",
    "container_pressure_memory_stalled_seconds_total",
    "container_pressure_memory_waiting_seconds_total",
    "container_spec_memory_swap_limit_bytes",
];

impl Client {
    fn descriptors(&self) -> BTreeMap<String, Vec<String>> {
        let request = v1::ListMetricDescriptorsRequest {};
        let answer = self.call(|mut c| async move { c.list_metric_descriptors(request).await }).unwrap();
        let count = answer.descriptors.len();
        let map: BTreeMap<_, _> = answer.descriptors.into_iter().map(|desc| (desc.name, desc.label_keys)).collect();
        assert_eq!(map.len(), count, "each is described once");
        map
    }

    fn metrics(&self) -> Vec<v1::PodSandboxMetrics> {
        let request = v1::ListPodSandboxMetricsRequest {};
        self.call(|mut c| async move { c.list_pod_sandbox_metrics(request).await }).unwrap().pod_metrics
    }

    fn metrics_of(&self, pod: &Pod) -> v1::PodSandboxMetrics {
        self.metrics().into_iter().find(|metrics| metrics.pod_sandbox_id == pod.id).expect("the pod is ready")
    }

    /// Returns the messages of a stream.
    fn stream_metrics(&self) -> Vec<Vec<v1::PodSandboxMetrics>> {
        let request = v1::StreamPodSandboxMetricsRequest {};
        let read = |mut c: v1::runtime_service_client::RuntimeServiceClient<_>| async move {
            let (mut stream, mut all) = (c.stream_pod_sandbox_metrics(request).await?.into_inner(), Vec::new());
            while let Some(message) = stream.message().await? {
                all.push(message.pod_sandbox_metrics);
            }
            Asked::Ok(tonic::Response::new(all))
        };
        self.call(read).unwrap()
    }
}

/// Returns values by name and by the family's own labels.
fn values(metrics: &[v1::Metric]) -> BTreeMap<String, u64> {
    let key = |metric: &v1::Metric| [&metric.name[..]].into_iter().chain(own(metric)).collect::<Vec<_>>().join(" ");
    metrics.iter().map(|metric| (key(metric), metric.value.unwrap().value)).collect()
}

fn own(metric: &v1::Metric) -> impl Iterator<Item = &str> {
    metric.label_values.iter().skip(6).map(String::as_str)
}

fn of_container(pod: &v1::PodSandboxMetrics, id: &str) -> BTreeMap<String, u64> {
    let found = pod.container_metrics.iter().find(|container| container.container_id == id);
    values(&found.expect("the container lives").metrics)
}

/// Creates a pod with other interfaces than loopback, as network plugins create them.
fn pod_with_network(daemon: &Daemon, name: &str) -> Pod {
    let pod = daemon.run_pod(name);
    let netns = daemon.env.state().join("pods").join(&pod.id).join("netns");
    let ip = |line: &str| {
        let net = format!("--net={}", netns.display());
        Command::new("nsenter").arg(net).arg("ip").args(line.split(' ')).status().unwrap().success()
    };
    // The available types of interfaces depend on the kernel.
    assert!(ip("link add eth0 type veth peer name eth1") || ip("link add eth0 type dummy"));
    assert!(ip("link set eth0 up"));
    ip("link set eth1 up");
    pod
}

fn limited(name: &str, command: &[&str]) -> v1::ContainerConfig {
    let mut config = container(name, command);
    config.linux.as_mut().unwrap().resources = Some(v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 20_000,
        cpu_shares: 1024,
        memory_limit_in_bytes: 64 << 20,
        memory_swap_limit_in_bytes: 64 << 20,
        ..Default::default()
    });
    config
}

#[test]
fn every_family_is_described_and_has_samples_with_its_labels() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let described = client.descriptors();
    let names: BTreeSet<&str> = described.keys().map(String::as_str).collect();
    assert_eq!(names, ALWAYS.into_iter().chain(SOMETIMES).collect());
    assert!(client.metrics().is_empty() && client.stream_metrics().is_empty());

    let pod = pod_with_network(&daemon, "pod");
    let id = client.run_config(&pod, limited("main", &IDLE));
    client.wait_printed(&id, "idle");
    client.exec_script(&id, "for i in 1 2 3; do echo hi > /file$i; done; sync");
    // The first measurement of a layer may be late under load.
    let metrics = wait_for("all families", seconds(10), || {
        let metrics = client.metrics_of(&pod);
        let all = metrics.metrics.iter().chain(metrics.container_metrics.iter().flat_map(|c| &c.metrics));
        let reported: BTreeSet<&str> = all.map(|metric| metric.name.as_str()).collect();
        ALWAYS.iter().all(|name| reported.contains(name)).then_some(metrics)
    });
    let all = metrics.metrics.iter().chain(&metrics.container_metrics[0].metrics);
    let mut seen = BTreeSet::new();
    for metric in all {
        assert_eq!(metric.label_values.len(), described[&metric.name].len(), "{metric:?}");
        assert!(seen.insert((&metric.name, &metric.label_values)), "reported twice: {metric:?}");
    }
    assert_eq!(described["container_memory_rss"], ["container", "id", "image", "name", "namespace", "pod"]);
    let rss = metrics.container_metrics[0].metrics.iter().find(|metric| metric.name == "container_memory_rss").unwrap();
    let status = client.status(&id);
    let labels: Vec<&str> = rss.label_values.iter().map(String::as_str).collect();
    assert_eq!(labels[0], "main");
    assert!(labels[1].starts_with(daemon.env.cgroup()) && labels[1].ends_with(&id), "{labels:?}");
    assert_eq!(labels[2..], [&status.image.unwrap().image, &id, "tests", "pod"]);
    let received = metrics.metrics.iter().find(|m| m.name == "container_network_receive_bytes_total").unwrap();
    assert_eq!((received.label_values[0].as_str(), received.label_values[6].as_str()), ("", "eth0"));
}

#[test]
fn the_values_equal_the_kernels() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = pod_with_network(&daemon, "pod");
    let id = client.run_config(&pod, limited("main", &IDLE));
    client.wait_printed(&id, "idle");
    let reported = of_container(&client.metrics_of(&pod), &id);
    let of_kernel = |files: [&str; 2]| {
        let file = files[usize::from(kernel_state::is_v2())];
        let dirs = kernel_state::cgroups_under(daemon.env.cgroup()).into_iter();
        let dir = dirs.filter(|dir| dir.ends_with(&id)).find(|dir| dir.join(file).exists()).unwrap();
        fs::read_to_string(dir.join(file)).unwrap()
    };
    let number = |files| of_kernel(files).trim().parse::<u64>().unwrap();
    let near = |name: &str, files| {
        let (reported, kernels) = (reported[name], number(files));
        assert!(reported.abs_diff(kernels) <= MIB, "{name}: {reported} is not {kernels}");
    };
    near("container_memory_usage_bytes", ["memory.usage_in_bytes", "memory.current"]);
    if !kernel_state::is_v2() {
        near("container_memory_max_usage_bytes", ["memory.max_usage_in_bytes", ""]);
        near("container_memory_kernel_usage", ["memory.kmem.usage_in_bytes", ""]);
    }
    assert_eq!(reported["container_threads"], number(["pids.current", "pids.current"]));
    let procs = of_kernel(["cgroup.procs", "cgroup.procs"]).lines().count();
    assert_eq!(reported["container_processes"], u64::try_from(procs).unwrap());
    assert_eq!((reported["container_processes"], reported["container_sockets"]), (2, 0), "a shell and what it runs");
    assert!((4..40).contains(&reported["container_file_descriptors"]), "{reported:?}");
    assert_eq!(reported["container_memory_failcnt"], 0);
    assert_eq!(reported["container_oom_events_total"], 0);
    let limits = client.exec_script(&id, "grep 'Max open files' /proc/1/limits");
    let limit: u64 = limits.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_eq!(reported["container_ulimits_soft max_open_files"], limit);

    assert_eq!(reported["container_spec_cpu_period"], 100_000);
    assert_eq!(reported["container_spec_cpu_quota"], 20_000);
    assert_eq!(reported["container_spec_cpu_shares"], 1024);
    assert_eq!(reported["container_spec_memory_limit_bytes"], 64 * MIB);
    assert_eq!(reported["container_spec_memory_reservation_limit_bytes"], 0);
    if let Some(swap) = reported.get("container_spec_memory_swap_limit_bytes") {
        assert_eq!(*swap, 64 * MIB);
    }
    let started = u64::try_from(client.status(&id).started_at / 1_000_000_000).unwrap();
    assert_eq!(reported["container_start_time_seconds"], started);
    assert!((started..started + 600).contains(&reported["container_last_seen"]));
}

#[test]
fn the_values_follow_the_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = pod_with_network(&daemon, "pod");
    // Uses all of its quota, opens a socket, and waits.
    let script = "nc -l -p 9 & (exec 9<>/dev/zero; sleep 100000) & echo idle; i=0; \
        while [ $i -lt 3000000 ]; do i=$((i+1)); done; wait";
    let id = client.run_config(&pod, limited("main", &["sh", "-c", script]));
    client.wait_printed(&id, "idle");
    let reported = wait_for("the quota to be used up", seconds(60), || {
        let reported = of_container(&client.metrics_of(&pod), &id);
        (reported["container_cpu_cfs_throttled_periods_total"] >= 3 && reported["container_sockets"] >= 1)
            .then_some(reported)
    });
    assert!(reported["container_cpu_cfs_periods_total"] >= reported["container_cpu_cfs_throttled_periods_total"]);
    let busy = wait_for("a second of it", seconds(60), || {
        let reported = of_container(&client.metrics_of(&pod), &id);
        (reported["container_cpu_usage_seconds_total total"] >= 1).then_some(reported)
    });
    assert!(busy["container_memory_failures_total pgfault container"] > 0, "{busy:?}");

    // The kernel sends neighbour discovery packets.
    let sent = wait_for("something to be sent", seconds(20), || {
        let sent = values(&client.metrics_of(&pod).metrics);
        (sent["container_network_transmit_packets_total eth0"] > 0).then_some(sent)
    });
    assert!(sent["container_network_transmit_bytes_total eth0"] > 0, "{sent:?}");
    assert_eq!(sent["container_network_transmit_errors_total eth0"], 0);
}

#[test]
fn an_oom_kill_is_counted_in_the_metrics() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // Only the child with the string is killed, not the shell.
    let script = "sh -c 'x=$(yes 0123456789 | head -c 200000000)'; echo killed; sleep 100000 & wait";
    let id = client.run_config(&pod, limited("main", &["sh", "-c", script]));
    client.wait_printed(&id, "killed");
    let reported = of_container(&client.metrics_of(&pod), &id);
    assert!(reported["container_oom_events_total"] >= 1, "{reported:?}");
    assert_eq!(reported["container_memory_max_usage_bytes"], 64 * MIB);
    // Recent v1 kernels do not count hits of the limit that involve swap.
    assert!(reported["container_memory_failcnt"] >= u64::from(kernel_state::is_v2()), "{reported:?}");
}

#[test]
fn metrics_cover_live_containers_and_are_streamed_in_bounded_messages() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pods = ["a", "b", "c"].map(|name| daemon.run_pod(name));
    let ids = pods.each_ref().map(|pod| client.run_idle(pod, "main"));
    client.script(&pods[0], "exited", "true");
    let created = client.create(&pods[1], "created", &["true"]);
    let containers = |list: &[v1::PodSandboxMetrics]| -> BTreeSet<String> {
        list.iter().flat_map(|pod| &pod.container_metrics).map(|metrics| metrics.container_id.clone()).collect()
    };
    let list = client.metrics();
    assert_eq!(containers(&list), ids.iter().cloned().chain([created.clone()]).collect());
    assert!(!of_container(&client.metrics_of(&pods[1]), &created).contains_key("container_start_time_seconds"));
    assert!(list.iter().all(|pod| pod.metrics.is_empty()), "there is nothing but loopback");
    let streamed = client.stream_metrics();
    assert!(streamed.iter().all(|piece| !piece.is_empty()));
    assert_eq!(containers(&streamed.concat()), containers(&list));
    client.stop_pod(&pods[2].id).unwrap();
    assert!(client.metrics().iter().all(|pod| pod.pod_sandbox_id != pods[2].id));
}

#[test]
fn metrics_of_fifty_containers_take_less_than_100_ms() {
    let daemon = Daemon::start();
    let count = times(50, 10);
    for number in 0..count {
        let pod = daemon.run_pod(&format!("pod-{number}"));
        daemon.client().run_config(&pod, container("main", &["sleep", "100000"]));
    }
    let fastest = (0..times(20, 3)).map(|_| {
        let begin = Instant::now();
        assert_eq!(daemon.client().metrics().len(), count);
        begin.elapsed()
    });
    let fastest = fastest.min().unwrap();
    assert!(fastest < std::time::Duration::from_millis(100) * slow(), "{fastest:?}");
}
