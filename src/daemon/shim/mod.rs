//! The daemon's side of the shims: starting one, talking to it, finding it again.

mod client;
pub(crate) mod pid_file;
mod probe;
mod spawn;

pub(crate) use client::{AskError, Client, ON_THE_WAY_OUT, ShimEvent};
pub use spawn::{Program, SpawnError};

#[cfg(test)]
mod client_tests;
