//! Limits: reads the current values, plans ordered writes, writes them, reads them back, rolls back on failure.
//!
//! `plan` is pure; `v1` and `v2` turn limits into files; `apply` carries a plan out;
//! `memory_shrink` lowers memory without an OOM kill; `quota_clamp` keeps a new v1 cgroup within
//! the CPU quota of its ancestors; `release` lifts what binds the cgroup above once a container has
//! ended; `swap` disables swap if it was not requested.

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
