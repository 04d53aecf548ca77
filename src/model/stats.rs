//! What pods and containers use now.
//!
//! What the kernel does not tell is absent, never 0: a number that is there was read at the moment beside it.

use std::time::SystemTime;

/// One reading of a cgroup: all that its processes and those below it use.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupUsage {
    pub at: SystemTime,
    /// Processor time on all cores together, in nanoseconds.
    pub cpu: Option<u64>,
    pub memory: Option<MemoryUsage>,
    pub swap: Option<SwapUsage>,
    pub cpu_pressure: Option<Pressure>,
    pub memory_pressure: Option<Pressure>,
    pub io_pressure: Option<Pressure>,
}

/// Memory in bytes, and counters of page faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUsage {
    /// All that is charged.
    pub usage: u64,
    /// The usage without files that nobody has used for a while.
    pub working_set: u64,
    /// What the limit leaves above the working set; absent without a limit.
    pub available: Option<u64>,
    /// Anonymous memory.
    pub rss: Option<u64>,
    pub page_faults: Option<u64>,
    /// Those that needed the disk.
    pub major_page_faults: Option<u64>,
}

/// Swap in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapUsage {
    pub usage: u64,
    /// What the limit leaves; absent without a limit.
    pub available: Option<u64>,
}

/// How long work stood still for want of something.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks waited at once; older kernels do not say it of the processor.
    pub full: Option<Stall>,
}

/// A share of time that was lost to waiting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stall {
    /// Percent of the last 10, 60 and 300 seconds.
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    /// In nanoseconds, since the cgroup was made.
    pub total: u64,
}

/// What the files of a writable layer take on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUsage {
    /// When the last of them was counted.
    pub at: SystemTime,
    pub bytes: u64,
    pub inodes: u64,
}

/// What went through the interfaces of a network namespace, loopback aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkUsage {
    pub at: SystemTime,
    pub default: InterfaceUsage,
    pub others: Vec<InterfaceUsage>,
}

/// Counters of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceUsage {
    pub name: String,
    pub rx_bytes: u64,
    pub rx_packets: u64,
    pub rx_errors: u64,
    pub rx_dropped: u64,
    pub tx_bytes: u64,
    pub tx_packets: u64,
    pub tx_errors: u64,
    pub tx_dropped: u64,
}

/// A container's part.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerStats {
    /// Absent once its cgroup is gone.
    pub group: Option<GroupUsage>,
    /// Nanoseconds of processor time in a second, of late; absent until there are two readings to compare.
    pub nano_cores: Option<u64>,
    /// Absent until it was measured for the first time.
    pub writable: Option<DiskUsage>,
}

/// A pod as a whole, its containers included.
#[derive(Debug, Clone, PartialEq)]
pub struct PodStats {
    /// Absent once its cgroup is gone.
    pub group: Option<GroupUsage>,
    /// As in [`ContainerStats`].
    pub nano_cores: Option<u64>,
    pub tasks: Option<TaskCount>,
    /// Absent with the host's network, and where there is nothing but loopback.
    pub network: Option<NetworkUsage>,
}

/// How many tasks there are; each thread is one, as in the limit of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskCount {
    pub at: SystemTime,
    pub count: u64,
}
