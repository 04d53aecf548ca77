//! Exec, attach and port-forward, as clients stream them.

mod attach;
mod client;
mod exec;
mod forward;
mod hostile;
mod real;
mod websocket;
