//! Resource usage of pods and containers (CRI stats).
//!
//! A value that the kernel does not report is absent, never 0. Each present value was read at the
//! time in `at`.

use std::time::SystemTime;

/// One reading of a cgroup: the usage of its processes and of those in cgroups below it.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupUsage {
    pub at: SystemTime,
    /// CPU time on all cores together, in nanoseconds.
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
    /// All memory charged to the cgroup.
    pub usage: u64,
    /// The usage without inactive file pages.
    pub working_set: u64,
    /// The least of all limits minus their working sets, from the cgroup's own up to the root; absent without a limit.
    pub available: Option<u64>,
    /// Anonymous memory.
    pub rss: Option<u64>,
    pub page_faults: Option<u64>,
    /// Page faults that needed disk I/O.
    pub major_page_faults: Option<u64>,
}

/// Swap in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapUsage {
    pub usage: u64,
    /// The limit minus the usage; absent without a limit.
    pub available: Option<u64>,
}

/// Pressure stall information (PSI) of one resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks waited at once; older kernels do not report it for CPU.
    pub full: Option<Stall>,
}

/// The share of time lost to waiting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stall {
    /// Percent of the last 10, 60 and 300 seconds.
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    /// In nanoseconds, since the cgroup was created.
    pub total: u64,
}

/// Disk usage of a container's writable layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUsage {
    /// The time when the count ended.
    pub at: SystemTime,
    pub bytes: u64,
    pub inodes: u64,
}

/// Traffic of the interfaces of a network namespace, without loopback.
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

/// The stats of a container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerStats {
    /// Absent once its cgroup is removed.
    pub group: Option<GroupUsage>,
    /// Recent CPU usage in nanoseconds per second; absent until there are two readings to compare.
    pub nano_cores: Option<u64>,
    /// Absent until the first measurement.
    pub writable: Option<DiskUsage>,
}

/// The stats of a pod including its containers.
#[derive(Debug, Clone, PartialEq)]
pub struct PodStats {
    /// Absent once its cgroup is removed.
    pub group: Option<GroupUsage>,
    /// As in [`ContainerStats`].
    pub nano_cores: Option<u64>,
    pub tasks: Option<TaskCount>,
    /// Absent with the host's network, and if there is only a loopback interface.
    pub network: Option<NetworkUsage>,
}

/// The number of tasks (threads), as in the kernel's limit `pids.max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskCount {
    pub at: SystemTime,
    pub count: u64,
}
