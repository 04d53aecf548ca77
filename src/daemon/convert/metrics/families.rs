//! The names that metrics have: cAdvisor's, which the kubelet has always shown, so that dashboards and alerts go on.

use cri_api::v1;
use cri_api::v1::MetricType;

/// What every metric is labelled with, in this order, as the kubelet labels cAdvisor's.
pub(super) const LABELS: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];

/// Metrics of one name.
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

/// All there are. What they say never changes, so that a client may ask once.
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
    LAST_SEEN: Gauge "container_last_seen" [] "When the container was looked at last, in seconds since 1970.";
    START_TIME: Gauge "container_start_time_seconds" [] "When the container started, in seconds since 1970.";

    CPU_USAGE: Counter "container_cpu_usage_seconds_total" ["cpu"] "Processor time used, in seconds.";
    CPU_USER: Counter "container_cpu_user_seconds_total" [] "Processor time used in user mode, in seconds.";
    CPU_SYSTEM: Counter "container_cpu_system_seconds_total" [] "Processor time used in the kernel, in seconds.";
    CFS_PERIODS: Counter "container_cpu_cfs_periods_total" [] "Periods in which a quota of processor time was in force.";
    CFS_THROTTLED_PERIODS: Counter "container_cpu_cfs_throttled_periods_total" []
        "Periods in which the quota of processor time was used up.";
    CFS_THROTTLED: Counter "container_cpu_cfs_throttled_seconds_total" []
        "How long the container had to wait since its quota was used up, in seconds.";

    MEMORY_USAGE: Gauge "container_memory_usage_bytes" [] "Memory in use, whenever it was used last.";
    MEMORY_WORKING_SET: Gauge "container_memory_working_set_bytes" [] "Memory in use that cannot be taken back at once.";
    MEMORY_RSS: Gauge "container_memory_rss" [] "Anonymous memory, in bytes.";
    MEMORY_CACHE: Gauge "container_memory_cache" [] "Page cache, in bytes.";
    MEMORY_MAPPED: Gauge "container_memory_mapped_file" [] "Files mapped into memory, in bytes.";
    MEMORY_KERNEL: Gauge "container_memory_kernel_usage" [] "Memory that the kernel uses for the container, in bytes.";
    MEMORY_SWAP: Gauge "container_memory_swap" [] "Swap in use, in bytes.";
    MEMORY_PEAK: Gauge "container_memory_max_usage_bytes" [] "The most memory that was ever in use.";
    MEMORY_FAILCNT: Counter "container_memory_failcnt" [] "How often the limit of memory was hit.";
    MEMORY_FAILURES: Counter "container_memory_failures_total" ["failure_type", "scope"] "Page faults.";
    OOM: Counter "container_oom_events_total" [] "Processes that the kernel killed for lack of memory.";

    HUGE_PAGES: Gauge "container_hugetlb_usage_bytes" ["pagesize"] "Huge pages in use.";
    HUGE_PAGES_PEAK: Gauge "container_hugetlb_max_usage_bytes" ["pagesize"] "The most huge pages that were ever in use.";

    FS_USAGE: Gauge "container_fs_usage_bytes" ["device"] "What the container's writable layer takes on the disk.";
    FS_LIMIT: Gauge "container_fs_limit_bytes" ["device"] "The size of the file system that it is on.";
    FS_INODES: Gauge "container_fs_inodes_total" ["device"] "Inodes of that file system.";
    FS_INODES_FREE: Gauge "container_fs_inodes_free" ["device"] "Free inodes of that file system.";
    FS_READS: Counter "container_fs_reads_total" ["device"] "Reads that block devices have done.";
    FS_READ_BYTES: Counter "container_fs_reads_bytes_total" ["device"] "Bytes read from block devices.";
    FS_WRITES: Counter "container_fs_writes_total" ["device"] "Writes that block devices have done.";
    FS_WRITE_BYTES: Counter "container_fs_writes_bytes_total" ["device"] "Bytes written to block devices.";
    BLKIO: Counter "container_blkio_device_usage_total" ["device", "major", "minor", "operation"]
        "Bytes that went to and from block devices.";

    RX_BYTES: Counter "container_network_receive_bytes_total" ["interface"] "Bytes received.";
    RX_PACKETS: Counter "container_network_receive_packets_total" ["interface"] "Packets received.";
    RX_DROPPED: Counter "container_network_receive_packets_dropped_total" ["interface"] "Packets dropped on receipt.";
    RX_ERRORS: Counter "container_network_receive_errors_total" ["interface"] "Errors in receiving.";
    TX_BYTES: Counter "container_network_transmit_bytes_total" ["interface"] "Bytes sent.";
    TX_PACKETS: Counter "container_network_transmit_packets_total" ["interface"] "Packets sent.";
    TX_DROPPED: Counter "container_network_transmit_packets_dropped_total" ["interface"] "Packets dropped in sending.";
    TX_ERRORS: Counter "container_network_transmit_errors_total" ["interface"] "Errors in sending.";

    CPU_STALLED: Counter "container_pressure_cpu_stalled_seconds_total" []
        "How long all tasks at once waited for a processor, in seconds.";
    CPU_WAITING: Counter "container_pressure_cpu_waiting_seconds_total" []
        "How long some task waited for a processor, in seconds.";
    MEMORY_STALLED: Counter "container_pressure_memory_stalled_seconds_total" []
        "How long all tasks at once waited for memory, in seconds.";
    MEMORY_WAITING: Counter "container_pressure_memory_waiting_seconds_total" []
        "How long some task waited for memory, in seconds.";
    IO_STALLED: Counter "container_pressure_io_stalled_seconds_total" []
        "How long all tasks at once waited for a disk, in seconds.";
    IO_WAITING: Counter "container_pressure_io_waiting_seconds_total" []
        "How long some task waited for a disk, in seconds.";

    PROCESSES: Gauge "container_processes" [] "Processes.";
    THREADS: Gauge "container_threads" [] "Threads of all processes.";
    THREADS_MAX: Gauge "container_threads_max" [] "How many threads there may be; 0: as many as they like.";
    DESCRIPTORS: Gauge "container_file_descriptors" [] "Open file descriptors of all processes.";
    SOCKETS: Gauge "container_sockets" [] "Those of the open file descriptors that are sockets.";
    ULIMITS: Gauge "container_ulimits_soft" ["ulimit"] "Soft resource limits of the first process.";

    SPEC_CPU_PERIOD: Gauge "container_spec_cpu_period" [] "The period of the quota of processor time, in microseconds.";
    SPEC_CPU_QUOTA: Gauge "container_spec_cpu_quota" [] "The quota of processor time in each period, in microseconds.";
    SPEC_CPU_SHARES: Gauge "container_spec_cpu_shares" [] "The weight of the container when processors are short.";
    SPEC_MEMORY: Gauge "container_spec_memory_limit_bytes" [] "The limit of memory; 0: none.";
    SPEC_MEMORY_SWAP: Gauge "container_spec_memory_swap_limit_bytes" [] "The limit of memory and swap together; 0: none.";
    SPEC_MEMORY_RESERVED: Gauge "container_spec_memory_reservation_limit_bytes" []
        "Memory that is kept for the container when it is short; 0: none.";
}
