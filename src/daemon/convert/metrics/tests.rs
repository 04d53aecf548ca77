use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use cgroup::CurrentLimits;
use model::resources::{CpuShares, CpuWeight};
use model::stats::{Stall, SwapUsage};

use super::super::tests::support::{container_record, pod_record, time};
use super::*;

fn pressure(base: u64) -> Option<Pressure> {
    let stall = |seconds: u64| Stall { avg10: 0.0, avg60: 0.0, avg300: 0.0, total: seconds * 1_000_000_000 + 999 };
    Some(Pressure { some: stall(base), full: Some(stall(base + 1)) })
}

/// Returns counters with a different value in every field.
fn group() -> GroupCounters {
    GroupCounters {
        usage: GroupUsage {
            at: time(5000),
            cpu: Some(1_999_999_999),
            memory: Some(MemoryUsage {
                usage: 2,
                working_set: 3,
                available: None,
                rss: Some(4),
                page_faults: Some(5),
                major_page_faults: Some(6),
            }),
            swap: Some(SwapUsage { usage: 7, available: None }),
            cpu_pressure: pressure(10),
            memory_pressure: pressure(20),
            io_pressure: pressure(30),
        },
        cpu: CpuCounters {
            user: Some(40_000_000_000),
            system: Some(41_000_000_000),
            periods: Some(42),
            throttled_periods: Some(43),
            throttled: Some(44_000_000_000),
        },
        memory: MemoryCounters {
            cache: Some(50),
            mapped: Some(51),
            kernel: Some(52),
            peak: Some(53),
            limit_hits: Some(54),
            oom_kills: Some(55),
            own_page_faults: Some(56),
            own_major_page_faults: Some(57),
            reserved: Some(58),
        },
        io: vec![DeviceIo {
            major: 8,
            minor: 1,
            read_bytes: Some(60),
            write_bytes: Some(61),
            discard_bytes: Some(62),
            reads: Some(63),
            writes: Some(64),
        }],
        huge_pages: vec![HugePageUsage { size: "2MB".to_owned(), usage: 70, peak: Some(71) }],
        tasks: Some(80),
        tasks_max: Some(81),
    }
}

fn metered(group: GroupCounters) -> MetricsSnapshot {
    let mut record = container_record();
    record.state = ContainerState::Running { pid: NonZeroU32::MIN, started: time(4000) };
    let interface = |name: &str, base: u64| InterfaceUsage {
        name: name.to_owned(),
        rx_bytes: base,
        rx_packets: base + 1,
        rx_errors: base + 2,
        rx_dropped: base + 3,
        tx_bytes: base + 4,
        tx_packets: base + 5,
        tx_errors: base + 6,
        tx_dropped: base + 7,
    };
    let processes =
        ProcessCounters { processes: Some(90), descriptors: Some(91), sockets: Some(92), open_files_max: Some(93) };
    let observed = ObservedLimits {
        cpu_quota: Some(Micros(100)),
        cpu_period: Some(Micros(101)),
        cpu_shares: Some(CpuShares::new(102).unwrap()),
        memory: Some(Bytes(103)),
        memory_swap: Some(Bytes(104)),
        ..ObservedLimits::default()
    };
    let container = ContainerMetrics {
        record: Arc::new(record),
        counters: ContainerCounters {
            group,
            processes,
            writable: Some(DiskUsage { at: time(4500), bytes: 110, inodes: 111 }),
        },
        limits: Some(CurrentLimits { observed, drift: Vec::new() }),
    };
    let network =
        NetworkUsage { at: time(5000), default: interface("eth0", 200), others: vec![interface("net1", 300)] };
    MetricsSnapshot {
        pods: vec![PodMetrics { record: Arc::new(pod_record()), network: Some(network), containers: vec![container] }],
        writables: Some(FileSystem { device: "/dev/vda".to_owned(), bytes: 112, inodes: 113, inodes_free: 114 }),
        devices: Devices::known(&[(8, 1, "/dev/sda1")]),
    }
}

/// Returns every metric of the only pod, with its own labels after its name.
fn reported(metered: &MetricsSnapshot) -> BTreeMap<String, u64> {
    let pods = pods(metered);
    let all = pods[0].metrics.iter().chain(&pods[0].container_metrics[0].metrics);
    let reported = all.map(|metric| {
        let own = &metric.label_values[LABELS.len()..];
        let key = std::iter::once(&metric.name).chain(own).cloned().collect::<Vec<_>>().join(" ");
        (key, metric.value.unwrap().value)
    });
    let list: Vec<_> = reported.collect();
    let map: BTreeMap<_, _> = list.iter().cloned().collect();
    assert_eq!(map.len(), list.len(), "no two have the same labels: {list:?}");
    map
}

#[test]
fn every_family_is_described_once_and_has_samples_with_its_labels() {
    let described: BTreeMap<String, v1::MetricDescriptor> =
        descriptors().into_iter().map(|descriptor| (descriptor.name.clone(), descriptor)).collect();
    assert_eq!(described.len(), f::ALL.len());
    assert!(described.values().all(|descriptor| descriptor.help.ends_with('.')));
    let pods = pods(&metered(group()));
    let all: Vec<_> = pods[0].metrics.iter().chain(&pods[0].container_metrics[0].metrics).collect();
    let mut names = BTreeSet::new();
    for metric in all {
        let descriptor = &described[&metric.name];
        assert_eq!(metric.label_values.len(), descriptor.label_keys.len(), "{}", metric.name);
        // Two names of cAdvisor do not contain their unit.
        let counts = match metric.name.as_str() {
            "container_memory_failcnt" => true,
            "container_fs_inodes_total" => false,
            name => name.ends_with("_total"),
        };
        assert_eq!(metric.metric_type() == v1::MetricType::Counter, counts, "{}", metric.name);
        names.insert(metric.name.clone());
    }
    assert_eq!(names.len(), described.len(), "each of them is reported");
}

/// The expected metrics with their labels and their values in [`metered`].
const KNOWN: &[(&str, u64)] = &[
    ("container_last_seen", 5000),
    ("container_start_time_seconds", 4000),
    ("container_cpu_usage_seconds_total total", 1),
    ("container_cpu_user_seconds_total", 40),
    ("container_cpu_system_seconds_total", 41),
    ("container_cpu_cfs_periods_total", 42),
    ("container_cpu_cfs_throttled_periods_total", 43),
    ("container_cpu_cfs_throttled_seconds_total", 44),
    ("container_memory_usage_bytes", 2),
    ("container_memory_working_set_bytes", 3),
    ("container_memory_rss", 4),
    ("container_memory_failures_total pgfault hierarchy", 5),
    ("container_memory_failures_total pgmajfault hierarchy", 6),
    ("container_memory_failures_total pgfault container", 56),
    ("container_memory_failures_total pgmajfault container", 57),
    ("container_memory_swap", 7),
    ("container_memory_cache", 50),
    ("container_memory_mapped_file", 51),
    ("container_memory_kernel_usage", 52),
    ("container_memory_max_usage_bytes", 53),
    ("container_memory_failcnt", 54),
    ("container_oom_events_total", 55),
    ("container_spec_memory_reservation_limit_bytes", 58),
    ("container_pressure_cpu_waiting_seconds_total", 10),
    ("container_pressure_cpu_stalled_seconds_total", 11),
    ("container_pressure_memory_waiting_seconds_total", 20),
    ("container_pressure_memory_stalled_seconds_total", 21),
    ("container_pressure_io_waiting_seconds_total", 30),
    ("container_pressure_io_stalled_seconds_total", 31),
    ("container_fs_reads_bytes_total /dev/sda1", 60),
    ("container_fs_writes_bytes_total /dev/sda1", 61),
    ("container_fs_reads_total /dev/sda1", 63),
    ("container_fs_writes_total /dev/sda1", 64),
    ("container_blkio_device_usage_total /dev/sda1 8 1 Read", 60),
    ("container_blkio_device_usage_total /dev/sda1 8 1 Write", 61),
    ("container_blkio_device_usage_total /dev/sda1 8 1 Discard", 62),
    ("container_fs_usage_bytes /dev/vda", 110),
    ("container_fs_limit_bytes /dev/vda", 112),
    ("container_fs_inodes_total /dev/vda", 113),
    ("container_fs_inodes_free /dev/vda", 114),
    ("container_hugetlb_usage_bytes 2MB", 70),
    ("container_hugetlb_max_usage_bytes 2MB", 71),
    ("container_threads", 80),
    ("container_threads_max", 81),
    ("container_processes", 90),
    ("container_file_descriptors", 91),
    ("container_sockets", 92),
    ("container_ulimits_soft max_open_files", 93),
    ("container_spec_cpu_quota", 100),
    ("container_spec_cpu_period", 101),
    ("container_spec_cpu_shares", 102),
    ("container_spec_memory_limit_bytes", 103),
    ("container_spec_memory_swap_limit_bytes", 104),
    ("container_network_receive_bytes_total eth0", 200),
    ("container_network_receive_packets_total eth0", 201),
    ("container_network_receive_errors_total eth0", 202),
    ("container_network_receive_packets_dropped_total eth0", 203),
    ("container_network_transmit_bytes_total eth0", 204),
    ("container_network_transmit_packets_total eth0", 205),
    ("container_network_transmit_errors_total eth0", 206),
    ("container_network_transmit_packets_dropped_total eth0", 207),
    ("container_network_receive_bytes_total net1", 300),
    ("container_network_receive_packets_total net1", 301),
    ("container_network_receive_errors_total net1", 302),
    ("container_network_receive_packets_dropped_total net1", 303),
    ("container_network_transmit_bytes_total net1", 304),
    ("container_network_transmit_packets_total net1", 305),
    ("container_network_transmit_errors_total net1", 306),
    ("container_network_transmit_packets_dropped_total net1", 307),
];

#[test]
fn every_value_has_its_name() {
    let reported = reported(&metered(group()));
    let known: BTreeMap<String, u64> = KNOWN.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
    assert_eq!(reported, known);
}

#[test]
fn labels_are_those_of_the_kubelet() {
    let metered = metered(group());
    let (pod, container) = (pod_record(), container_record());
    let meta = &pod.spec.meta;
    let pods = pods(&metered);
    let labels = |metric: &v1::Metric| metric.label_values[..LABELS.len()].to_vec();
    assert_eq!(pods[0].pod_sandbox_id, pod.id.to_string());
    assert_eq!(
        labels(&pods[0].metrics[0]),
        ["", pod.cgroup.path.as_str(), "", pod.id.as_str(), &meta.namespace, &meta.name].map(str::to_owned)
    );
    let own = &pods[0].container_metrics[0];
    assert_eq!(own.container_id, container.id.to_string());
    let name = &container.spec.meta.name;
    let known =
        [name, container.cgroup.as_str(), &container.image.name, container.id.as_str(), &meta.namespace, &meta.name];
    assert!(own.metrics.iter().all(|metric| labels(metric) == known.map(str::to_owned)));
}

#[test]
fn only_cached_values_have_a_timestamp() {
    let pods = pods(&metered(group()));
    for metric in pods[0].container_metrics[0].metrics.iter().chain(&pods[0].metrics) {
        let at = if metric.name == "container_fs_usage_bytes" { nanos(time(4500)) } else { 0 };
        assert_eq!(metric.timestamp, at, "{}", metric.name);
    }
}

#[test]
fn values_that_the_kernel_does_not_report_are_absent() {
    let nothing = GroupCounters {
        usage: GroupUsage {
            at: time(5000),
            cpu: None,
            memory: None,
            swap: None,
            cpu_pressure: None,
            memory_pressure: None,
            io_pressure: None,
        },
        cpu: CpuCounters::default(),
        memory: MemoryCounters::default(),
        io: Vec::new(),
        huge_pages: Vec::new(),
        tasks: None,
        tasks_max: None,
    };
    let mut metered = metered(nothing);
    metered.pods[0].network = None;
    let container = &mut metered.pods[0].containers[0];
    container.counters.processes = ProcessCounters::default();
    container.counters.writable = None;
    container.limits = None;
    assert_eq!(
        reported(&metered).into_keys().collect::<Vec<_>>(),
        ["container_last_seen", "container_start_time_seconds"]
    );
}

#[test]
fn unlimited_is_zero_and_a_weight_is_converted_to_shares() {
    let mut metered = metered(group());
    let observed = ObservedLimits {
        cpu_period: Some(Micros(100_000)),
        cpu_weight: Some(CpuWeight::new(100).unwrap()),
        ..ObservedLimits::default()
    };
    metered.pods[0].containers[0].limits = Some(CurrentLimits { observed, drift: Vec::new() });
    let reported = reported(&metered);
    assert_eq!(reported["container_spec_memory_limit_bytes"], 0);
    assert_eq!(reported["container_spec_memory_swap_limit_bytes"], 0);
    assert!(!reported.contains_key("container_spec_cpu_quota"));
    let shares = reported["container_spec_cpu_shares"];
    assert_eq!(cgroup::weight(CpuShares::new(i64::try_from(shares).unwrap()).unwrap()), 100);
}
