//! Creates containers and runs processes in them. `crisp-shim` uses it on the host.
//!
//! The folders show in which process and on which side of the boundary the code runs:
//!
//! - [`launch`]: the launcher, a short-lived child of the shim with its own mount namespace. It calls libcontainer.
//! - [`rootfs`]: mounts, prepared on the host by the launcher and attached inside the container's root.
//! - [`process`]: inside the container, in its first process and in every exec: drops rights, executes the program.
//! - [`io`]: standard streams, the terminal and the CRI log file, on the shim's side.
//! - [`namespaces`]: entering namespaces and leaving them again.
//!
//! Everything here forks or enters namespaces, so it needs a process with one thread.
#![forbid(unsafe_code)]

pub mod io;
pub mod launch;
pub mod namespaces;
pub mod process;
pub mod rootfs;
mod step_error;

pub use step_error::{StepError, step};

/// Writes to the shim's log. A write that fails is ignored: the process must not end because its
/// log cannot be written.
pub fn log(message: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    writeln!(std::io::stderr(), "crisp-shim: {message}").ok();
}
