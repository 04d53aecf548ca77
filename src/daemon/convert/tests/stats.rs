use std::sync::Arc;

use super::super::tests::support::{container_config, container_record, map, pod_config, pod_record, time};
use super::*;

const SECOND: i64 = 1_000_000_000;

fn stall_of(seed: u32) -> Stall {
    let seed = f64::from(seed);
    Stall { avg10: seed + 0.25, avg60: seed + 0.5, avg300: seed + 0.75, total: 7_000 }
}

fn pressure_of(seed: u32) -> Pressure {
    Pressure { some: stall_of(seed), full: Some(stall_of(seed + 1)) }
}

/// Returns usage with a different value in every field.
fn group(at: u64, base: u64) -> GroupUsage {
    GroupUsage {
        at: time(at),
        cpu: Some(base + 1),
        memory: Some(MemoryUsage {
            usage: base + 2,
            working_set: base + 3,
            available: Some(base + 4),
            rss: Some(base + 5),
            page_faults: Some(base + 6),
            major_page_faults: Some(base + 7),
        }),
        swap: Some(SwapUsage { usage: base + 8, available: Some(base + 9) }),
        cpu_pressure: Some(pressure_of(10)),
        memory_pressure: Some(pressure_of(20)),
        io_pressure: Some(pressure_of(30)),
    }
}

fn container_seen() -> ContainerStatsEntry {
    ContainerStatsEntry {
        record: Arc::new(container_record()),
        stats: ContainerStats {
            group: Some(group(400, 100)),
            nano_cores: Some(110),
            writable: Some(DiskUsage { at: time(390), bytes: 111, inodes: 112 }),
        },
    }
}

fn pod_seen() -> PodStatsEntry {
    let interface = |name: &str, base: u64| InterfaceUsage {
        name: name.to_owned(),
        rx_bytes: base + 1,
        rx_packets: base + 5,
        rx_errors: base + 2,
        rx_dropped: base + 6,
        tx_bytes: base + 3,
        tx_packets: base + 7,
        tx_errors: base + 4,
        tx_dropped: base + 8,
    };
    PodStatsEntry {
        record: Arc::new(pod_record()),
        stats: PodStats {
            group: Some(group(500, 200)),
            nano_cores: Some(210),
            tasks: Some(TaskCount { at: time(501), count: 211 }),
            network: Some(NetworkUsage {
                at: time(502),
                default: interface("eth0", 220),
                others: vec![interface("net1", 230)],
            }),
        },
        containers: vec![container_seen()],
    }
}

fn number(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}

fn psi(seed: u32) -> Option<v1::PsiStats> {
    let data = |seed: u32| {
        let seed = f64::from(seed);
        Some(v1::PsiData { total: 7_000, avg10: seed + 0.25, avg60: seed + 0.5, avg300: seed + 0.75 })
    };
    Some(v1::PsiStats { full: data(seed + 1), some: data(seed) })
}

fn cpu(timestamp: i64, base: u64) -> Option<v1::CpuUsage> {
    Some(v1::CpuUsage {
        timestamp,
        usage_core_nano_seconds: number(base + 1),
        usage_nano_cores: number(base + 10),
        psi: psi(10),
    })
}

fn memory(timestamp: i64, base: u64) -> Option<v1::MemoryUsage> {
    Some(v1::MemoryUsage {
        timestamp,
        working_set_bytes: number(base + 3),
        available_bytes: number(base + 4),
        usage_bytes: number(base + 2),
        rss_bytes: number(base + 5),
        page_faults: number(base + 6),
        major_page_faults: number(base + 7),
        psi: psi(20),
    })
}

fn container_on_the_wire() -> v1::ContainerStats {
    let timestamp = 400 * SECOND + 5;
    v1::ContainerStats {
        attributes: Some(v1::ContainerAttributes {
            id: "02".repeat(32),
            metadata: container_config().metadata,
            labels: map(&[("lk", "lv")]),
            annotations: map(&[("ak", "av")]),
        }),
        cpu: cpu(timestamp, 100),
        memory: memory(timestamp, 100),
        writable_layer: Some(v1::FilesystemUsage {
            timestamp: 390 * SECOND + 5,
            fs_id: Some(v1::FilesystemIdentifier { mountpoint: "/var/lib/crisp/containers".to_owned() }),
            used_bytes: number(111),
            inodes_used: number(112),
        }),
        swap: Some(v1::SwapUsage { timestamp, swap_available_bytes: number(109), swap_usage_bytes: number(108) }),
        io: Some(v1::IoUsage { timestamp, psi: psi(30) }),
    }
}

const WRITABLES: &str = "/var/lib/crisp/containers";

#[test]
fn a_containers_stats_have_every_field() {
    assert_eq!(container(&container_seen(), Path::new(WRITABLES)), container_on_the_wire());
}

#[test]
fn a_pods_stats_have_every_field() {
    let timestamp = 500 * SECOND + 5;
    let interface = |name: &str, base: u64| v1::NetworkInterfaceUsage {
        name: name.to_owned(),
        rx_bytes: number(base + 1),
        rx_errors: number(base + 2),
        tx_bytes: number(base + 3),
        tx_errors: number(base + 4),
    };
    let linux = v1::LinuxPodSandboxStats {
        cpu: cpu(timestamp, 200),
        memory: memory(timestamp, 200),
        network: Some(v1::NetworkUsage {
            timestamp: 502 * SECOND + 5,
            default_interface: Some(interface("eth0", 220)),
            interfaces: vec![interface("net1", 230)],
        }),
        process: Some(v1::ProcessUsage { timestamp: 501 * SECOND + 5, process_count: number(211) }),
        containers: vec![container_on_the_wire()],
        io: Some(v1::IoUsage { timestamp, psi: psi(30) }),
    };
    let attributes = v1::PodSandboxAttributes {
        id: "01".repeat(32),
        metadata: pod_config().metadata,
        labels: map(&[("lk", "lv")]),
        annotations: map(&[("ak", "av")]),
    };
    assert_eq!(
        pod(&pod_seen(), Path::new(WRITABLES)),
        v1::PodSandboxStats { attributes: Some(attributes), linux: Some(linux), windows: None }
    );
}

#[test]
fn unknown_values_are_absent_and_not_zero() {
    let mut seen = container_seen();
    seen.stats = ContainerStats { group: None, nano_cores: None, writable: None };
    let reported = container(&seen, Path::new(WRITABLES));
    assert_eq!(reported, v1::ContainerStats { attributes: reported.attributes.clone(), ..Default::default() });
    let bare = MemoryUsage {
        usage: 1,
        working_set: 1,
        available: None,
        rss: None,
        page_faults: None,
        major_page_faults: None,
    };
    seen.stats.group = Some(GroupUsage {
        cpu_pressure: None,
        memory_pressure: None,
        io_pressure: None,
        memory: Some(bare),
        swap: Some(SwapUsage { usage: 2, available: None }),
        ..group(1, 0)
    });
    let reported = container(&seen, Path::new(WRITABLES));
    let (cpu, memory) = (reported.cpu.unwrap(), reported.memory.unwrap());
    assert_eq!((cpu.usage_nano_cores, cpu.psi, reported.io), (None, None, None));
    assert_eq!((memory.available_bytes, memory.rss_bytes, memory.psi), (None, None, None));
    assert_eq!((memory.page_faults, memory.major_page_faults), (None, None));
    assert_eq!(reported.swap.unwrap().swap_available_bytes, None);
    let older = Pressure { some: stall_of(1), full: None };
    assert_eq!(pressure(older).full, None);
}

#[test]
fn a_pod_without_usage_still_has_a_linux_message() {
    let mut seen = pod_seen();
    seen.stats = PodStats { group: None, nano_cores: None, tasks: None, network: None };
    seen.containers.clear();
    let reported = pod(&seen, Path::new(WRITABLES));
    assert_eq!(reported.linux, Some(v1::LinuxPodSandboxStats::default()), "the kubelet reads it without a check");
}
