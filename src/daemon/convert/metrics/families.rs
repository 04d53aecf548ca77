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
    LAST_SEEN: Gauge "container_last_seen" [] "Time at which crisp measured the container, in seconds since 1970.";
    START_TIME: Gauge "container_start_time_seconds" [] "Start time of the container, in seconds since 1970.";

    CPU_USAGE: Counter "container_cpu_usage_seconds_total" ["cpu"] "CPU time used by the container, in seconds.";
    CPU_USER: Counter "container_cpu_user_seconds_total" [] "CPU time used by the container in user mode, in seconds.";
    CPU_SYSTEM: Counter "container_cpu_system_seconds_total" [] "CPU time used by the container in kernel mode, in seconds.";
    CFS_PERIODS: Counter "container_cpu_cfs_periods_total" [] "Scheduler (CFS) periods in which the container ran with a CPU quota.";
    CFS_THROTTLED_PERIODS: Counter "container_cpu_cfs_throttled_periods_total" []
        "Scheduler (CFS) periods in which the container was throttled, since its CPU quota was used up.";
    CFS_THROTTLED: Counter "container_cpu_cfs_throttled_seconds_total" []
        "Time for which the container was throttled by its CPU quota, in seconds.";

    MEMORY_USAGE: Gauge "container_memory_usage_bytes" [] "Memory in use by the container, in bytes, including page cache.";
    MEMORY_WORKING_SET: Gauge "container_memory_working_set_bytes" [] "Memory in use by the container, in bytes, without inactive page cache.";
    MEMORY_RSS: Gauge "container_memory_rss" [] "Anonymous memory of the container, in bytes.";
    MEMORY_CACHE: Gauge "container_memory_cache" [] "Page cache of the container, in bytes.";
    MEMORY_MAPPED: Gauge "container_memory_mapped_file" [] "Files that the container has mapped into memory, in bytes.";
    MEMORY_KERNEL: Gauge "container_memory_kernel_usage" [] "Memory that the kernel uses for the container, in bytes.";
    MEMORY_SWAP: Gauge "container_memory_swap" [] "Swap in use by the container, in bytes.";
    MEMORY_PEAK: Gauge "container_memory_max_usage_bytes" [] "Maximum memory that the container has used, in bytes.";
    MEMORY_FAILCNT: Counter "container_memory_failcnt" [] "Number of times the container reached its memory limit.";
    MEMORY_FAILURES: Counter "container_memory_failures_total" ["failure_type", "scope"] "Page faults of the container; failure_type pgmajfault: those that read from disk.";
    OOM: Counter "container_oom_events_total" [] "Processes of the container killed by the OOM killer.";

    HUGE_PAGES: Gauge "container_hugetlb_usage_bytes" ["pagesize"] "Huge pages in use by the container, in bytes.";
    HUGE_PAGES_PEAK: Gauge "container_hugetlb_max_usage_bytes" ["pagesize"] "Maximum huge pages that the container has used, in bytes.";

    FS_USAGE: Gauge "container_fs_usage_bytes" ["device"] "Disk space used by the container's writable layer, in bytes.";
    FS_LIMIT: Gauge "container_fs_limit_bytes" ["device"] "Size of the file system with the container's writable layer, in bytes.";
    FS_INODES: Gauge "container_fs_inodes_total" ["device"] "Inodes of the file system with the container's writable layer.";
    FS_INODES_FREE: Gauge "container_fs_inodes_free" ["device"] "Free inodes of the file system with the container's writable layer.";
    FS_READS: Counter "container_fs_reads_total" ["device"] "Reads from block devices that the container has completed.";
    FS_READ_BYTES: Counter "container_fs_reads_bytes_total" ["device"] "Bytes that the container has read from block devices.";
    FS_WRITES: Counter "container_fs_writes_total" ["device"] "Writes to block devices that the container has completed.";
    FS_WRITE_BYTES: Counter "container_fs_writes_bytes_total" ["device"] "Bytes that the container has written to block devices.";
    BLKIO: Counter "container_blkio_device_usage_total" ["device", "major", "minor", "operation"]
        "Bytes that the container has read from and written to block devices.";

    RX_BYTES: Counter "container_network_receive_bytes_total" ["interface"] "Bytes received by the pod.";
    RX_PACKETS: Counter "container_network_receive_packets_total" ["interface"] "Packets received by the pod.";
    RX_DROPPED: Counter "container_network_receive_packets_dropped_total" ["interface"] "Packets to the pod that its network interface dropped.";
    RX_ERRORS: Counter "container_network_receive_errors_total" ["interface"] "Errors of the pod's network interface while receiving.";
    TX_BYTES: Counter "container_network_transmit_bytes_total" ["interface"] "Bytes sent by the pod.";
    TX_PACKETS: Counter "container_network_transmit_packets_total" ["interface"] "Packets sent by the pod.";
    TX_DROPPED: Counter "container_network_transmit_packets_dropped_total" ["interface"] "Packets from the pod that its network interface dropped.";
    TX_ERRORS: Counter "container_network_transmit_errors_total" ["interface"] "Errors of the pod's network interface while sending.";

    CPU_STALLED: Counter "container_pressure_cpu_stalled_seconds_total" []
        "Time in which all tasks of the container waited for a CPU (PSI full), in seconds.";
    CPU_WAITING: Counter "container_pressure_cpu_waiting_seconds_total" []
        "Time in which some task of the container waited for a CPU (PSI some), in seconds.";
    MEMORY_STALLED: Counter "container_pressure_memory_stalled_seconds_total" []
        "Time in which all tasks of the container waited for memory (PSI full), in seconds.";
    MEMORY_WAITING: Counter "container_pressure_memory_waiting_seconds_total" []
        "Time in which some task of the container waited for memory (PSI some), in seconds.";
    IO_STALLED: Counter "container_pressure_io_stalled_seconds_total" []
        "Time in which all tasks of the container waited for I/O (PSI full), in seconds.";
    IO_WAITING: Counter "container_pressure_io_waiting_seconds_total" []
        "Time in which some task of the container waited for I/O (PSI some), in seconds.";

    PROCESSES: Gauge "container_processes" [] "Processes of the container.";
    THREADS: Gauge "container_threads" [] "Threads of the container's processes.";
    THREADS_MAX: Gauge "container_threads_max" [] "Maximum number of threads of the container; 0: unlimited.";
    DESCRIPTORS: Gauge "container_file_descriptors" [] "Open file descriptors of the container's processes.";
    SOCKETS: Gauge "container_sockets" [] "Open sockets of the container's processes.";
    ULIMITS: Gauge "container_ulimits_soft" ["ulimit"] "Soft resource limits (setrlimit) of the container's first process.";

    SPEC_CPU_PERIOD: Gauge "container_spec_cpu_period" [] "Period of the container's CPU quota, in microseconds.";
    SPEC_CPU_QUOTA: Gauge "container_spec_cpu_quota" [] "CPU time that the container may use per period (CPU quota), in microseconds.";
    SPEC_CPU_SHARES: Gauge "container_spec_cpu_shares" [] "CPU shares of the container.";
    SPEC_MEMORY: Gauge "container_spec_memory_limit_bytes" [] "Memory limit of the container, in bytes; 0: unlimited.";
    SPEC_MEMORY_SWAP: Gauge "container_spec_memory_swap_limit_bytes" [] "Limit of the container's memory and swap together, in bytes; 0: unlimited.";
    SPEC_MEMORY_RESERVED: Gauge "container_spec_memory_reservation_limit_bytes" []
        "Memory reservation (soft limit) of the container, in bytes; 0: none.";
}
