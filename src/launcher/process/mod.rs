//! Runs inside the container, in its first process and in every exec: capabilities, LSM label, seccomp, execve; hooks.

pub(crate) mod capabilities;
pub mod execve;
pub mod hook;
pub mod lsm_label;
pub mod process_tree;
pub(crate) mod seccomp_filter;
pub mod setns_exec;
