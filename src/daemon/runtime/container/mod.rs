//! The CRI calls on containers, one file per verb, and the parts of CreateContainer.
//!
//! `create_plan` makes every check of CreateContainer before anything is created; `create` carries
//! the plan out.

mod create;
mod create_abort;
mod create_error;
pub(crate) mod create_plan;
mod devices;
mod exit_log;
mod log;
pub(crate) mod oom_score;
mod pod_resources_check;
pub(crate) mod poststop_hooks;
pub(crate) mod remove;
mod start;
pub(crate) mod stop;
mod update;
mod volumes;
