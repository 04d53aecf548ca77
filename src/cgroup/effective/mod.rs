//! Effective limits: those that the kernel enforces at a cgroup, from any level up to the root.
//!
//! A limit of a pod, of its QoS class or of any cgroup above applies to a container as its own does: the lowest one
//! is effective. [`LevelReading`] has the values of one level, [`effective_limits`] is a pure function over the
//! readings of all levels, and [`LevelReadings`] reads them, each level once.
//!
//! ```text
//!              v1                                                v2
//! cpu          cpu.cfs_quota_us, cpu.cfs_period_us               cpu.max
//! memory       memory.limit_in_bytes, .usage_in_bytes, .stat     memory.max, .current, .stat
//! limit hits   memory.failcnt, memory.memsw.failcnt              memory.events.local: max
//! pids         pids.max, pids.current                            pids.max, pids.current
//! cpuset       cpuset.effective_cpus                             cpuset.cpus.effective
//! ```

mod read;
mod walk;

use serde::{Deserialize, Serialize};

#[cfg(test)]
pub(crate) use read::read_files;
pub use read::{LevelError, LevelReadings};
pub use walk::{LevelReading, effective_limits};

/// The position of a cgroup above a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LevelKind {
    Container,
    Pod,
    /// Any cgroup between the pod and the root, such as that of a QoS class.
    Parent,
    Root,
}

impl LevelKind {
    pub fn word(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
            Self::Parent => "parent",
            Self::Root => "root",
        }
    }
}

/// One cgroup between a container and the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    pub kind: LevelKind,
    /// `/` for the root.
    pub cgroup: String,
}

/// The limits that the kernel enforces; `None` if no level has one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveLimits {
    /// In billionths of a CPU, without `free`: a rate is not used up.
    pub cpu: Option<EffectiveLimit>,
    /// In bytes; `free` is the limit without the working set.
    pub memory: Option<EffectiveLimit>,
    /// In processes and threads.
    pub pids: Option<EffectiveLimit>,
    pub cpuset: Option<EffectiveCpus>,
    /// How often each level's own memory limit was hit since the level was created, as far as the kernel counts it.
    pub memory_hits: Vec<LimitHits>,
    /// The level whose memory limit was hit last, if that is known.
    pub last_memory_hit: Option<LastHit>,
}

/// The lowest limit of all levels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveLimit {
    pub limit: u64,
    /// The nearest level with this limit.
    pub set_by: Level,
    /// The rest below the limit at that level, which its other children use too.
    pub free: Option<u64>,
    /// A level with a higher limit, but less of it left.
    pub least_free: Option<LeastFree>,
}

impl EffectiveLimit {
    /// Returns the rest that is left below the limits of all levels.
    pub fn available(&self) -> Option<u64> {
        self.least_free.as_ref().map(|least| least.free).or(self.free)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeastFree {
    pub free: u64,
    pub at: Level,
}

/// The CPUs that processes can run on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveCpus {
    pub cpus: String,
    /// The highest level with exactly these CPUs.
    pub set_by: Level,
}

/// The last hit of a memory limit. The kernel only counts: of one level with hits it is known to be the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastHit {
    pub at: Level,
    pub hits: u64,
    /// When a reader noticed it, in nanoseconds since 1970; `None` if it was before the first reading.
    pub seen: Option<u64>,
}

/// How often the memory limit of a level was hit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitHits {
    pub at: Level,
    pub hits: u64,
}
