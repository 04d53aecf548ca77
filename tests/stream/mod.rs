//! Exec, attach and port-forward with streaming clients.

mod attach;
mod client;
mod concurrency;
mod crictl;
mod exec;
mod forward;
mod hostile;
mod pty;
mod terminal;
mod websocket;
