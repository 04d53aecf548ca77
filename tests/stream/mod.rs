//! Exec, attach and port-forward, as clients stream them.

mod attach;
mod client;
mod crictl;
mod crowd;
mod exec;
mod forward;
mod hostile;
mod seat;
mod terminal;
mod websocket;
