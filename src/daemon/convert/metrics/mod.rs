//! Metrics of pods and containers over CRI.

mod families;
#[cfg(test)]
mod tests;

use std::time::{SystemTime, UNIX_EPOCH};

use cri_api::v1;
use model::ContainerState;
use model::metrics::{
    ContainerCounters, CpuCounters, DeviceIo, FileSystem, GroupCounters, HugePageUsage, MemoryCounters, ProcessCounters,
};
use model::resources::{Bytes, Micros, ObservedLimits};
use model::stats::{DiskUsage, GroupUsage, InterfaceUsage, MemoryUsage, NetworkUsage, Pressure};

use super::resources::shares_of;
use super::status::nanos;
use crate::runtime::{ContainerMetrics, Devices, MetricsSnapshot, PodMetrics};
use crate::store::{ContainerRecord, PodRecord};
pub(crate) use families::descriptors;
use families::{self as f, Family, LABELS};

/// Returns the metrics of all pods.
pub(crate) fn pods(metered: &MetricsSnapshot) -> Vec<v1::PodSandboxMetrics> {
    metered.pods.iter().map(|pod| of_pod(pod, metered)).collect()
}

fn of_pod(pod: &PodMetrics, metered: &MetricsSnapshot) -> v1::PodSandboxMetrics {
    let PodMetrics { record, network, containers } = pod;
    let mut sheet = MetricSet::new(pod_labels(record));
    if let Some(usage) = network {
        of_network(&mut sheet, usage);
    }
    v1::PodSandboxMetrics {
        pod_sandbox_id: record.id.to_string(),
        metrics: sheet.metrics,
        container_metrics: containers.iter().map(|container| of_container(container, record, metered)).collect(),
    }
}

fn of_container(container: &ContainerMetrics, pod: &PodRecord, metered: &MetricsSnapshot) -> v1::ContainerMetrics {
    let ContainerMetrics { record, counters, limits } = container;
    let ContainerCounters { group, processes, writable } = counters;
    let mut sheet = MetricSet::new(container_labels(record, pod));
    sheet.put(&f::LAST_SEEN, &[], seconds_since_1970(group.usage.at));
    if let ContainerState::Running { started, .. } = record.state {
        sheet.put(&f::START_TIME, &[], seconds_since_1970(started));
    }
    of_cpu(&mut sheet, group);
    of_memory(&mut sheet, group);
    of_pressure(&mut sheet, &group.usage);
    of_disks(&mut sheet, &group.io, &metered.devices);
    if let (Some(usage), Some(disk)) = (writable, &metered.writables) {
        of_writable(&mut sheet, usage, disk);
    }
    of_processes(&mut sheet, processes, group);
    if let Some(now) = limits {
        let asked = record.spec.resources.cpu_shares;
        let shares = match (now.observed.cpu_shares, now.observed.cpu_weight) {
            (Some(shares), _) => Some(i64::from(shares)),
            (None, weight) => weight.map(|weight| shares_of(weight, asked)),
        };
        sheet.put(&f::SPEC_CPU_SHARES, &[], shares.and_then(|shares| u64::try_from(shares).ok()));
        of_limits(&mut sheet, &now.observed, group);
    }
    v1::ContainerMetrics { container_id: record.id.to_string(), metrics: sheet.metrics }
}

/// Returns the labels of a pod's network as cAdvisor has them: no container, no image.
fn pod_labels(record: &PodRecord) -> [String; LABELS.len()] {
    let meta = &record.spec.meta;
    let none = String::new;
    [none(), record.cgroup.path.to_string(), none(), record.id.to_string(), meta.namespace.clone(), meta.name.clone()]
}

/// Returns the labels of a container as cAdvisor has them: id is the cgroup, name is the ID.
fn container_labels(record: &ContainerRecord, pod: &PodRecord) -> [String; LABELS.len()] {
    let meta = &pod.spec.meta;
    [
        record.spec.meta.name.clone(),
        record.cgroup.to_string(),
        record.image.name.clone(),
        record.id.to_string(),
        meta.namespace.clone(),
        meta.name.clone(),
    ]
}

/// Collects metrics with the same labels.
struct MetricSet {
    labels: [String; LABELS.len()],
    metrics: Vec<v1::Metric>,
}

impl MetricSet {
    fn new(labels: [String; LABELS.len()]) -> Self {
        Self { labels, metrics: Vec::with_capacity(f::ALL.len() + 8) }
    }

    /// Adds a value that was read now, if there is one; `more` has the values of the family's own
    /// labels.
    fn put(&mut self, family: &Family, more: &[&str], value: Option<u64>) {
        self.put_at(family, more, value, 0);
    }

    /// Adds a value with the time at which it was read.
    fn put_at(&mut self, family: &Family, more: &[&str], value: Option<u64>, timestamp: i64) {
        debug_assert_eq!(more.len(), family.more.len(), "{}", family.name);
        let Some(value) = value else { return };
        let own = more.iter().map(|value| (*value).to_owned());
        self.metrics.push(v1::Metric {
            name: family.name.to_owned(),
            timestamp,
            metric_type: family.kind.into(),
            label_values: self.labels.iter().cloned().chain(own).collect(),
            value: Some(v1::UInt64Value { value }),
        });
    }
}

fn of_cpu(sheet: &mut MetricSet, group: &GroupCounters) {
    let CpuCounters { user, system, periods, throttled_periods, throttled } = group.cpu;
    sheet.put(&f::CPU_USAGE, &["total"], seconds(group.usage.cpu));
    sheet.put(&f::CPU_USER, &[], seconds(user));
    sheet.put(&f::CPU_SYSTEM, &[], seconds(system));
    sheet.put(&f::CFS_PERIODS, &[], periods);
    sheet.put(&f::CFS_THROTTLED_PERIODS, &[], throttled_periods);
    sheet.put(&f::CFS_THROTTLED, &[], seconds(throttled));
}

fn of_memory(sheet: &mut MetricSet, group: &GroupCounters) {
    if let Some(MemoryUsage { usage, working_set, available: _, rss, page_faults, major_page_faults }) =
        group.usage.memory
    {
        sheet.put(&f::MEMORY_USAGE, &[], Some(usage));
        sheet.put(&f::MEMORY_WORKING_SET, &[], Some(working_set));
        sheet.put(&f::MEMORY_RSS, &[], rss);
        sheet.put(&f::MEMORY_FAILURES, &["pgfault", "hierarchy"], page_faults);
        sheet.put(&f::MEMORY_FAILURES, &["pgmajfault", "hierarchy"], major_page_faults);
    }
    let MemoryCounters {
        cache,
        mapped,
        kernel,
        peak,
        limit_hits,
        oom_kills,
        own_page_faults,
        own_major_page_faults,
        reserved,
    } = group.memory;
    sheet.put(&f::MEMORY_CACHE, &[], cache);
    sheet.put(&f::MEMORY_MAPPED, &[], mapped);
    sheet.put(&f::MEMORY_KERNEL, &[], kernel);
    sheet.put(&f::MEMORY_SWAP, &[], group.usage.swap.map(|swap| swap.usage));
    sheet.put(&f::MEMORY_PEAK, &[], peak);
    sheet.put(&f::MEMORY_FAILCNT, &[], limit_hits);
    sheet.put(&f::MEMORY_FAILURES, &["pgfault", "container"], own_page_faults);
    sheet.put(&f::MEMORY_FAILURES, &["pgmajfault", "container"], own_major_page_faults);
    sheet.put(&f::OOM, &[], oom_kills);
    sheet.put(&f::SPEC_MEMORY_RESERVED, &[], reserved);
    for HugePageUsage { size, usage, peak } in &group.huge_pages {
        sheet.put(&f::HUGE_PAGES, &[size], Some(*usage));
        sheet.put(&f::HUGE_PAGES_PEAK, &[size], *peak);
    }
}

fn of_pressure(sheet: &mut MetricSet, usage: &GroupUsage) {
    for (pressure, stalled, waiting) in [
        (usage.cpu_pressure, &f::CPU_STALLED, &f::CPU_WAITING),
        (usage.memory_pressure, &f::MEMORY_STALLED, &f::MEMORY_WAITING),
        (usage.io_pressure, &f::IO_STALLED, &f::IO_WAITING),
    ] {
        let Some(Pressure { some, full }) = pressure else { continue };
        sheet.put(stalled, &[], seconds(full.map(|stall| stall.total)));
        sheet.put(waiting, &[], seconds(Some(some.total)));
    }
}

fn of_disks(sheet: &mut MetricSet, io: &[DeviceIo], devices: &Devices) {
    for DeviceIo { major, minor, read_bytes, write_bytes, discard_bytes, reads, writes } in io {
        let device = devices.name(*major, *minor);
        sheet.put(&f::FS_READS, &[device], *reads);
        sheet.put(&f::FS_READ_BYTES, &[device], *read_bytes);
        sheet.put(&f::FS_WRITES, &[device], *writes);
        sheet.put(&f::FS_WRITE_BYTES, &[device], *write_bytes);
        let (major, minor) = (major.to_string(), minor.to_string());
        for (operation, bytes) in [("Read", read_bytes), ("Write", write_bytes), ("Discard", discard_bytes)] {
            sheet.put(&f::BLKIO, &[device, &major, &minor, operation], *bytes);
        }
    }
}

fn of_writable(sheet: &mut MetricSet, usage: &DiskUsage, disk: &FileSystem) {
    let FileSystem { device, bytes, inodes, inodes_free } = disk;
    // Writable layers are measured in the background, so the value may be older.
    sheet.put_at(&f::FS_USAGE, &[device], Some(usage.bytes), nanos(usage.at));
    sheet.put(&f::FS_LIMIT, &[device], Some(*bytes));
    sheet.put(&f::FS_INODES, &[device], Some(*inodes));
    sheet.put(&f::FS_INODES_FREE, &[device], Some(*inodes_free));
}

fn of_network(sheet: &mut MetricSet, NetworkUsage { at: _, default, others }: &NetworkUsage) {
    for interface in std::iter::once(default).chain(others) {
        let InterfaceUsage {
            name,
            rx_bytes,
            rx_packets,
            rx_errors,
            rx_dropped,
            tx_bytes,
            tx_packets,
            tx_errors,
            tx_dropped,
        } = interface;
        for (family, value) in [
            (&f::RX_BYTES, rx_bytes),
            (&f::RX_PACKETS, rx_packets),
            (&f::RX_ERRORS, rx_errors),
            (&f::RX_DROPPED, rx_dropped),
            (&f::TX_BYTES, tx_bytes),
            (&f::TX_PACKETS, tx_packets),
            (&f::TX_ERRORS, tx_errors),
            (&f::TX_DROPPED, tx_dropped),
        ] {
            sheet.put(family, &[name], Some(*value));
        }
    }
}

fn of_processes(sheet: &mut MetricSet, counters: &ProcessCounters, group: &GroupCounters) {
    let ProcessCounters { processes, descriptors, sockets, open_files_max } = *counters;
    sheet.put(&f::PROCESSES, &[], processes);
    sheet.put(&f::THREADS, &[], group.tasks);
    sheet.put(&f::THREADS_MAX, &[], group.tasks_max);
    sheet.put(&f::DESCRIPTORS, &[], descriptors);
    sheet.put(&f::SOCKETS, &[], sockets);
    sheet.put(&f::ULIMITS, &["max_open_files"], open_files_max);
}

/// Adds all limits except the CPU shares. As in cAdvisor 0 means unlimited; a resource that the
/// kernel does not account has no limit.
fn of_limits(sheet: &mut MetricSet, now: &ObservedLimits, group: &GroupCounters) {
    let bytes = |limit: Option<Bytes>| limit.map_or(0, |Bytes(bytes)| bytes);
    sheet.put(&f::SPEC_CPU_PERIOD, &[], now.cpu_period.map(|Micros(period)| period));
    sheet.put(&f::SPEC_CPU_QUOTA, &[], now.cpu_quota.map(|Micros(quota)| quota));
    sheet.put(&f::SPEC_MEMORY, &[], group.usage.memory.map(|_| bytes(now.memory)));
    sheet.put(&f::SPEC_MEMORY_SWAP, &[], group.usage.swap.map(|_| bytes(now.memory_swap)));
}

/// CRI's values are integers.
fn seconds(nanos: Option<u64>) -> Option<u64> {
    nanos.map(|nanos| nanos / 1_000_000_000)
}

fn seconds_since_1970(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}
