//! Limits: reads the current values, plans ordered writes, writes them, reads them back, rolls back on failure.
//!
//! `plan` is pure; `v1` and `v2` convert limits to values of files; `apply` executes a plan;
//! `memory_shrink` lowers memory without an OOM kill; `quota_clamp` keeps a new v1 cgroup within
//! the CPU quota of its ancestors; `release` removes limits of an ended container that restrict its
//! parent cgroup; `swap` disables swap if it was not requested.

pub(crate) mod apply;
pub(crate) mod knob;
pub(crate) mod memory_shrink;
pub(crate) mod plan;
mod quota_clamp;
pub(crate) mod release;
mod swap;
mod v1;
pub(crate) mod v2;
pub(crate) mod value;
