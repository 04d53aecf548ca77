//! What metrics tell of a container beyond its [`stats`](crate::stats): the other counters of the kernel's.
//!
//! What the kernel does not tell is absent, never 0.

use crate::stats::{DiskUsage, GroupUsage};

/// One reading of all that the kernel counts for a cgroup and those below it.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupCounters {
    pub usage: GroupUsage,
    pub cpu: CpuCounters,
    pub memory: MemoryCounters,
    /// By block device, those that were used.
    pub io: Vec<DeviceIo>,
    /// By page size.
    pub huge_pages: Vec<HugePageUsage>,
    /// Each thread is one.
    pub tasks: Option<u64>,
    /// 0: as many as they like.
    pub tasks_max: Option<u64>,
}

/// Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuCounters {
    pub user: Option<u64>,
    pub system: Option<u64>,
    /// Periods in which a quota was in force.
    pub periods: Option<u64>,
    /// Those in which it was used up.
    pub throttled_periods: Option<u64>,
    pub throttled: Option<u64>,
}

/// Sizes are in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryCounters {
    pub cache: Option<u64>,
    pub mapped: Option<u64>,
    pub kernel: Option<u64>,
    pub peak: Option<u64>,
    /// How often the limit was hit.
    pub limit_hits: Option<u64>,
    pub oom_kills: Option<u64>,
    /// Page faults in the cgroup itself; where the kernel counts only those of the whole tree, these.
    pub own_page_faults: Option<u64>,
    pub own_major_page_faults: Option<u64>,
    /// What is kept for the cgroup when memory is short; 0: nothing.
    pub reserved: Option<u64>,
}

/// What went to and from one block device.
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
    /// As the kernel calls it: `2MB`.
    pub size: String,
    pub usage: u64,
    pub peak: Option<u64>,
}

/// What is counted by looking at each process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessCounters {
    pub processes: Option<u64>,
    pub descriptors: Option<u64>,
    /// Those of the descriptors that are sockets; absent where there are too many to look at each.
    pub sockets: Option<u64>,
    /// How many files the first process may open.
    pub open_files_max: Option<u64>,
}

/// A file system, and how much of it there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystem {
    pub device: String,
    pub bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// All that is told of one container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerCounters {
    pub group: GroupCounters,
    pub processes: ProcessCounters,
    /// Absent until it was measured for the first time.
    pub writable: Option<DiskUsage>,
}
