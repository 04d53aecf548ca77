//! The metric families: cAdvisor's names, so that existing dashboards and alerts keep working.

use cri_api::v1;
use cri_api::v1::MetricType;

/// The labels of every metric, in this order, as the kubelet labels cAdvisor's.
pub(super) const LABELS: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];

/// A metric family.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    /// Labels beyond [`LABELS`].
    pub(super) more: &'static [&'static str],
    help: &'static str,
}

impl Family {
    fn descriptor(&self) -> v1::MetricDescriptor {
        v1::MetricDescriptor {
            name: self.name.to_owned(),
            help: self.help.to_owned(),
            label_keys: LABELS.iter().chain(self.more).map(|key| (*key).to_owned()).collect(),
        }
    }
}

/// All families. They never change, so a client may request them once.
pub(crate) fn descriptors() -> Vec<v1::MetricDescriptor> {
    ALL.iter().map(|family| family.descriptor()).collect()
}

macro_rules! families {
    ($($constant:ident: $kind:ident $name:literal [$($more:literal),*] $help:literal;)*) => {
        $(pub(super) const $constant: Family =
            Family { name: $name, kind: MetricType::$kind, more: &[$($more),*], help: $help };)*
        pub(super) const ALL: &[Family] = &[$($constant),*];
    };
}

families! {
    LAST_SEEN: Gauge "container_last_seen" [] "Time of this measurement, in seconds since 1970.";
    START_TIME: Gauge "container_start_time_seconds" [] "Start time of the container, in seconds since 1970.";

    CPU_USAGE: Counter "container_cpu_usage_seconds_total" ["cpu"] "CPU time used, in seconds.";
    CPU_USER: Counter "container_cpu_user_seconds_total" [] "CPU time used in user mode, in seconds.";
    CPU_SYSTEM: Counter "container_cpu_system_seconds_total" [] "CPU time used in kernel mode, in seconds.";
    CFS_PERIODS: Counter "container_cpu_cfs_periods_total" [] "CFS periods with a CPU quota.";
    CFS_THROTTLED_PERIODS: Counter "container_cpu_cfs_throttled_periods_total" []
        "CFS periods in which the CPU quota was exhausted.";
    CFS_THROTTLED: Counter "container_cpu_cfs_throttled_seconds_total" []
        "Time throttled by the CPU quota, in seconds.";

    MEMORY_USAGE: Gauge "container_memory_usage_bytes" [] "Memory in use, in bytes, including page cache.";
    MEMORY_WORKING_SET: Gauge "container_memory_working_set_bytes" [] "Memory in use, in bytes, without inactive page cache.";
    MEMORY_RSS: Gauge "container_memory_rss" [] "Anonymous memory, in bytes.";
    MEMORY_CACHE: Gauge "container_memory_cache" [] "Page cache, in bytes.";
    MEMORY_MAPPED: Gauge "container_memory_mapped_file" [] "Files mapped into memory, in bytes.";
    MEMORY_KERNEL: Gauge "container_memory_kernel_usage" [] "Memory that the kernel uses for the container, in bytes.";
    MEMORY_SWAP: Gauge "container_memory_swap" [] "Swap in use, in bytes.";
    MEMORY_PEAK: Gauge "container_memory_max_usage_bytes" [] "Maximum memory in use, in bytes.";
    MEMORY_FAILCNT: Counter "container_memory_failcnt" [] "Number of times the memory limit was hit.";
    MEMORY_FAILURES: Counter "container_memory_failures_total" ["failure_type", "scope"] "Page faults.";
    OOM: Counter "container_oom_events_total" [] "Processes killed by the OOM killer.";

    HUGE_PAGES: Gauge "container_hugetlb_usage_bytes" ["pagesize"] "Huge pages in use, in bytes.";
    HUGE_PAGES_PEAK: Gauge "container_hugetlb_max_usage_bytes" ["pagesize"] "Maximum huge pages in use, in bytes.";

    FS_USAGE: Gauge "container_fs_usage_bytes" ["device"] "Disk space used by the container's writable layer, in bytes.";
    FS_LIMIT: Gauge "container_fs_limit_bytes" ["device"] "Size of the file system of the writable layer, in bytes.";
    FS_INODES: Gauge "container_fs_inodes_total" ["device"] "Inodes of the file system of the writable layer.";
    FS_INODES_FREE: Gauge "container_fs_inodes_free" ["device"] "Free inodes of the file system of the writable layer.";
    FS_READS: Counter "container_fs_reads_total" ["device"] "Completed reads from block devices.";
    FS_READ_BYTES: Counter "container_fs_reads_bytes_total" ["device"] "Bytes read from block devices.";
    FS_WRITES: Counter "container_fs_writes_total" ["device"] "Completed writes to block devices.";
    FS_WRITE_BYTES: Counter "container_fs_writes_bytes_total" ["device"] "Bytes written to block devices.";
    BLKIO: Counter "container_blkio_device_usage_total" ["device", "major", "minor", "operation"]
        "Bytes read from and written to block devices.";

    RX_BYTES: Counter "container_network_receive_bytes_total" ["interface"] "Bytes received.";
    RX_PACKETS: Counter "container_network_receive_packets_total" ["interface"] "Packets received.";
    RX_DROPPED: Counter "container_network_receive_packets_dropped_total" ["interface"] "Received packets dropped.";
    RX_ERRORS: Counter "container_network_receive_errors_total" ["interface"] "Receive errors.";
    TX_BYTES: Counter "container_network_transmit_bytes_total" ["interface"] "Bytes sent.";
    TX_PACKETS: Counter "container_network_transmit_packets_total" ["interface"] "Packets sent.";
    TX_DROPPED: Counter "container_network_transmit_packets_dropped_total" ["interface"] "Packets dropped while sending.";
    TX_ERRORS: Counter "container_network_transmit_errors_total" ["interface"] "Transmit errors.";

    CPU_STALLED: Counter "container_pressure_cpu_stalled_seconds_total" []
        "Time in which all tasks waited for a CPU (PSI full), in seconds.";
    CPU_WAITING: Counter "container_pressure_cpu_waiting_seconds_total" []
        "Time in which some task waited for a CPU (PSI some), in seconds.";
    MEMORY_STALLED: Counter "container_pressure_memory_stalled_seconds_total" []
        "Time in which all tasks waited for memory (PSI full), in seconds.";
    MEMORY_WAITING: Counter "container_pressure_memory_waiting_seconds_total" []
        "Time in which some task waited for memory (PSI some), in seconds.";
    IO_STALLED: Counter "container_pressure_io_stalled_seconds_total" []
        "Time in which all tasks waited for I/O (PSI full), in seconds.";
    IO_WAITING: Counter "container_pressure_io_waiting_seconds_total" []
        "Time in which some task waited for I/O (PSI some), in seconds.";

    PROCESSES: Gauge "container_processes" [] "Processes.";
    THREADS: Gauge "container_threads" [] "Threads of all processes.";
    THREADS_MAX: Gauge "container_threads_max" [] "Maximum number of threads; 0: unlimited.";
    DESCRIPTORS: Gauge "container_file_descriptors" [] "Open file descriptors of all processes.";
    SOCKETS: Gauge "container_sockets" [] "Open sockets of all processes.";
    ULIMITS: Gauge "container_ulimits_soft" ["ulimit"] "Soft resource limits of the first process.";

    SPEC_CPU_PERIOD: Gauge "container_spec_cpu_period" [] "Period of the CPU quota, in microseconds.";
    SPEC_CPU_QUOTA: Gauge "container_spec_cpu_quota" [] "CPU quota per period, in microseconds.";
    SPEC_CPU_SHARES: Gauge "container_spec_cpu_shares" [] "CPU shares of the container.";
    SPEC_MEMORY: Gauge "container_spec_memory_limit_bytes" [] "Memory limit, in bytes; 0: unlimited.";
    SPEC_MEMORY_SWAP: Gauge "container_spec_memory_swap_limit_bytes" [] "Limit of memory and swap together, in bytes; 0: unlimited.";
    SPEC_MEMORY_RESERVED: Gauge "container_spec_memory_reservation_limit_bytes" []
        "Memory reservation (soft limit), in bytes; 0: none.";
}
