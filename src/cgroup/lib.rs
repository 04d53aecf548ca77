//! crisp's resource engine: the cgroups of pods and containers, on v1, hybrid and v2 hosts.
//!
//! - [`Layout`]: the hierarchies of this host. Detected once, at the start.
//! - [`Cgroup`]: one cgroup by its [`model::CgroupPath`], in all trees. Creates and removes it,
//!   lists, freezes and kills its processes, and names the files that a process writes to join it.
//! - [`Knob`]: a file that holds one setting. [`CgroupFs`] is a set of them: the kernel's, or in memory for tests.
//! - [`plan`]: a pure function from the kernel's values and a
//!   [`LimitsPatch`](model::resources::LimitsPatch) to a [`Change`], an ordered list of [`Write`]s,
//!   or a refusal before the first one.
//! - [`AppliedValues`]: the written value of each file. A later other value in the kernel is [`Drift`].
//! - [`EffectiveLimits`]: the lowest limits of a cgroup and all above it, and the levels that set them.
//! - [`ShrinkForecast`]: how far its memory limit can be lowered.
//! - [`Cgroup::usage`]: the current usage of its processes, without a lock.
//! - [`DeviceRule`]: which device nodes the processes may use.
//! - [`Driver`]: the creator of the cgroups of pods and containers, crisp itself or [`Systemd`].
//!
//! The life of a container's cgroup:
//! ```text
//! create ─▶ set_devices ─▶ apply(limits) ─▶ processes join by join_files ─▶ apply(change)… ─▶ kill_all ─▶ remove
//! ```
//! A change reads the active limits and plans ([`prepare`], or [`plan_change`] and
//! [`check_shrink`]), then writes, reads back and compares ([`commit`]). If anything fails, every
//! earlier write is undone, and the error names the file, the value and the kernel's error.
//! [`recover`] completes or undoes a change that was interrupted between two writes. Memory is
//! lowered without OOM kills: `limits::memory_shrink` has the steps.
//!
//! Functions block while they access files, so an async caller uses blocking threads. Changes to
//! one cgroup must not overlap; the caller holds a lock. Nothing is stored between calls: the
//! kernel has all values.
#![forbid(unsafe_code)]

mod cgroup;
mod cgroupfs;
mod created_cgroup;
mod created_parents;
mod devices;
mod driver;
mod effective;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod favordynmods;
mod file_cache;
mod forecast;
mod layout;
pub(crate) mod limits;
mod processes;
mod search;
mod stats;
#[cfg(test)]
mod suite;
mod systemd;
#[cfg(test)]
mod tests;

pub use cgroup::{Cgroup, CgroupError, MountedController};
pub use created_cgroup::CreatedCgroup;
pub use created_parents::CreatedParents;
pub use devices::{Access, DeviceError, DeviceKind, DeviceRule, Verdict, allow_all, default_rules};
pub use driver::Driver;
pub use effective::{
    EffectiveCpus, EffectiveLimit, EffectiveLimits, LastHit, LeastFree, Level, LevelError, LevelKind, LevelReading,
    LevelReadings, LimitHits, effective_limits,
};
pub use favordynmods::{enable_favordynmods, favordynmods_is_free};
pub use file_cache::FileCache;
pub use forecast::{ForecastError, Probe, ProbeEnd, ProbeError, ProbeLimits, ShrinkForecast, forecast, probe};
pub use layout::{DetectError, Hierarchy, HierarchyKind, Layout, Version};
pub use limits::apply::{
    ApplyError, CurrentLimits, Drift, RecoveryOutcome, apply, check_shrink, commit, observe, plan_change, prepare,
    recover,
};
pub use limits::knob::{AppliedValue, AppliedValues, CgroupFs, Knob, Unreadable, Values};
pub use limits::memory_shrink::{ShrinkTimeouts, usage_if_lowered};
pub use limits::plan::{Change, Limit, PlanError, Write, knobs, plan};
pub use limits::release::ReleaseError;
pub use limits::v2::weight;
pub use limits::value::{KnobValue, Value};
pub use stats::{MemoryAbove, MemoryExtent, ReadBuffer, ReadError};
pub use systemd::{BusError, ReloadWatcher, SyncError, Systemd, SystemdError, slice};
