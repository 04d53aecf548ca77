//! Resource usage of pods and containers.

use std::path::Path;

use cri_api::v1;
use model::stats::{
    ContainerStats, DiskUsage, GroupUsage, InterfaceUsage, MemoryUsage, NetworkUsage, PodStats, Pressure, Stall,
    SwapUsage, TaskCount,
};

use super::status::nanos;
use super::{container, pod};
use crate::runtime::{ContainerStatsEntry, PodStatsEntry};
use crate::store::{ContainerRecord, PodRecord};

/// `writables` is the directory of all writable layers.
pub(crate) fn container(seen: &ContainerStatsEntry, writables: &Path) -> v1::ContainerStats {
    let ContainerStatsEntry { record, stats: ContainerStats { group, nano_cores, writable } } = seen;
    let Group { cpu, memory, swap, io } = group_to_wire(group.as_ref(), *nano_cores);
    v1::ContainerStats {
        attributes: Some(container_attributes(record)),
        cpu,
        memory,
        writable_layer: writable.as_ref().map(|usage| disk(usage, writables)),
        swap,
        io,
    }
}

pub(crate) fn pod(seen: &PodStatsEntry, writables: &Path) -> v1::PodSandboxStats {
    let PodStatsEntry { record, stats: PodStats { group, nano_cores, tasks, network }, containers } = seen;
    // CRI has no field for the swap of a whole pod.
    let Group { cpu, memory, swap: _, io } = group_to_wire(group.as_ref(), *nano_cores);
    v1::PodSandboxStats {
        attributes: Some(pod_attributes(record)),
        linux: Some(v1::LinuxPodSandboxStats {
            cpu,
            memory,
            network: network.as_ref().map(network_to_wire),
            process: tasks.map(process),
            containers: containers.iter().map(|seen| container(seen, writables)).collect(),
            io,
        }),
        windows: None,
    }
}

fn container_attributes(record: &ContainerRecord) -> v1::ContainerAttributes {
    v1::ContainerAttributes {
        id: record.id.to_string(),
        metadata: Some(container::meta_to_wire(&record.spec.meta)),
        labels: record.spec.labels.clone(),
        annotations: record.spec.annotations.clone(),
    }
}

fn pod_attributes(record: &PodRecord) -> v1::PodSandboxAttributes {
    v1::PodSandboxAttributes {
        id: record.id.to_string(),
        metadata: Some(pod::meta_to_wire(&record.spec.meta)),
        labels: record.spec.labels.clone(),
        annotations: record.spec.annotations.clone(),
    }
}

/// Converts one sample of a cgroup.
#[derive(Default)]
struct Group {
    cpu: Option<v1::CpuUsage>,
    memory: Option<v1::MemoryUsage>,
    swap: Option<v1::SwapUsage>,
    io: Option<v1::IoUsage>,
}

fn group_to_wire(group: Option<&GroupUsage>, nano_cores: Option<u64>) -> Group {
    let Some(group) = group else { return Group::default() };
    let GroupUsage { at, cpu, memory, swap, cpu_pressure, memory_pressure, io_pressure } = group;
    let timestamp = nanos(*at);
    Group {
        cpu: cpu.map(|used| v1::CpuUsage {
            timestamp,
            usage_core_nano_seconds: Some(value(used)),
            usage_nano_cores: nano_cores.map(value),
            psi: cpu_pressure.map(pressure),
        }),
        memory: memory.map(|usage| memory_to_wire(timestamp, usage, *memory_pressure)),
        swap: swap.map(|SwapUsage { usage, available }| v1::SwapUsage {
            timestamp,
            swap_available_bytes: available.map(value),
            swap_usage_bytes: Some(value(usage)),
        }),
        // CRI's message has no other field.
        io: io_pressure.map(|stalls| v1::IoUsage { timestamp, psi: Some(pressure(stalls)) }),
    }
}

fn memory_to_wire(timestamp: i64, memory: MemoryUsage, stalls: Option<Pressure>) -> v1::MemoryUsage {
    let MemoryUsage { usage, working_set, available, rss, page_faults, major_page_faults } = memory;
    v1::MemoryUsage {
        timestamp,
        working_set_bytes: Some(value(working_set)),
        available_bytes: available.map(value),
        usage_bytes: Some(value(usage)),
        rss_bytes: rss.map(value),
        page_faults: page_faults.map(value),
        major_page_faults: major_page_faults.map(value),
        psi: stalls.map(pressure),
    }
}

fn pressure(Pressure { some, full }: Pressure) -> v1::PsiStats {
    v1::PsiStats { full: full.map(stall), some: Some(stall(some)) }
}

fn stall(Stall { avg10, avg60, avg300, total }: Stall) -> v1::PsiData {
    v1::PsiData { total, avg10, avg60, avg300 }
}

fn network_to_wire(NetworkUsage { at, default, others }: &NetworkUsage) -> v1::NetworkUsage {
    v1::NetworkUsage {
        timestamp: nanos(*at),
        default_interface: Some(interface(default)),
        interfaces: others.iter().map(interface).collect(),
    }
}

fn interface(usage: &InterfaceUsage) -> v1::NetworkInterfaceUsage {
    // CRI has no fields for the others; they are in the metrics.
    let InterfaceUsage {
        name,
        rx_bytes,
        rx_packets: _,
        rx_errors,
        rx_dropped: _,
        tx_bytes,
        tx_packets: _,
        tx_errors,
        tx_dropped: _,
    } = usage;
    v1::NetworkInterfaceUsage {
        name: name.clone(),
        rx_bytes: Some(value(*rx_bytes)),
        rx_errors: Some(value(*rx_errors)),
        tx_bytes: Some(value(*tx_bytes)),
        tx_errors: Some(value(*tx_errors)),
    }
}

fn process(TaskCount { at, count }: TaskCount) -> v1::ProcessUsage {
    v1::ProcessUsage { timestamp: nanos(at), process_count: Some(value(count)) }
}

fn disk(DiskUsage { at, bytes, inodes }: &DiskUsage, writables: &Path) -> v1::FilesystemUsage {
    v1::FilesystemUsage {
        timestamp: nanos(*at),
        fs_id: Some(v1::FilesystemIdentifier { mountpoint: writables.display().to_string() }),
        used_bytes: Some(value(*bytes)),
        inodes_used: Some(value(*inodes)),
    }
}

fn value(value: u64) -> v1::UInt64Value {
    v1::UInt64Value { value }
}

#[cfg(test)]
#[path = "tests/stats.rs"]
mod tests;
