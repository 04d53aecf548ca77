//! Runs inside the container, in its first process and in every exec: capabilities, LSM label, seccomp, execve; hooks.

pub(crate) mod capabilities;
pub mod exec;
pub(crate) mod exec_program;
pub mod hook;
pub mod lsm_label;
pub mod process_tree;
