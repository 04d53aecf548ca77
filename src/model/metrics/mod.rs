//! Kernel counters of a container for metrics, in addition to its [`stats`](crate::stats).
//!
//! A value that the kernel does not report is absent, never 0.

pub mod histogram;

use crate::stats::{DiskUsage, GroupUsage};

/// One reading of the kernel's counters of a cgroup and those below it.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupCounters {
    pub usage: GroupUsage,
    pub cpu: CpuCounters,
    pub memory: MemoryCounters,
    /// By block device; unused devices are left out.
    pub io: Vec<DeviceIo>,
    /// By page size.
    pub huge_pages: Vec<HugePageUsage>,
    /// The number of threads.
    pub tasks: Option<u64>,
    /// 0: unlimited.
    pub tasks_max: Option<u64>,
}

/// CPU counters; times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuCounters {
    pub user: Option<u64>,
    pub system: Option<u64>,
    /// Periods in which a quota was active.
    pub periods: Option<u64>,
    /// Periods in which the quota was used up.
    pub throttled_periods: Option<u64>,
    pub throttled: Option<u64>,
}

/// Memory counters; sizes are in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryCounters {
    pub cache: Option<u64>,
    pub mapped: Option<u64>,
    pub kernel: Option<u64>,
    pub peak: Option<u64>,
    /// The number of times that usage reached the limit.
    pub limit_hits: Option<u64>,
    pub oom_kills: Option<u64>,
    /// Page faults in the cgroup itself; of the whole subtree if the kernel counts only those.
    pub own_page_faults: Option<u64>,
    pub own_major_page_faults: Option<u64>,
    /// Memory protected from reclaim; 0: none.
    pub reserved: Option<u64>,
}

/// I/O of one block device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceIo {
    pub major: u32,
    pub minor: u32,
    pub read_bytes: Option<u64>,
    pub write_bytes: Option<u64>,
    pub discard_bytes: Option<u64>,
    pub reads: Option<u64>,
    pub writes: Option<u64>,
}

/// Huge pages of one size, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HugePageUsage {
    /// The kernel's name: `2MB`.
    pub size: String,
    pub usage: u64,
    pub peak: Option<u64>,
}

/// Counters that are read from each process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessCounters {
    pub processes: Option<u64>,
    pub descriptors: Option<u64>,
    /// The number of descriptors that are sockets; absent if there are too many descriptors to check.
    pub sockets: Option<u64>,
    /// The limit on open files of the first process.
    pub open_files_max: Option<u64>,
}

/// A file system and its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystem {
    pub device: String,
    pub bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// All counters of one container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerCounters {
    pub group: GroupCounters,
    pub processes: ProcessCounters,
    /// Absent until the first measurement.
    pub writable: Option<DiskUsage>,
}
