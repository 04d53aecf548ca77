//! ExecSync, and the runtime's side of Exec, Attach and PortForward streams.

mod attach;
mod copy;
mod exec;
pub(crate) mod exec_budget;
pub(crate) mod exec_sync;
mod port_forward;
pub(super) mod running;
pub(crate) mod shutdown;
