//! The daemon's side of the shims: starts, connects, and finds them again.

mod client;
pub(crate) mod pid_file;
mod probe;
mod spawn;

pub(crate) use client::ShimClient;
pub use spawn::{ShimProgram, SpawnError};

#[cfg(test)]
mod client_tests;
