//! The standard streams of containers: pipes or a terminal, the CRI log file, attached clients. Runs in the shim.

pub mod attach_client;
pub(crate) mod console;
pub mod cri_log;
pub(crate) mod log_rate;
pub mod stdio;
