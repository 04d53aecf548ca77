//! The parts that commands share: the async runtime, and the errors on the way to the daemon.

use std::future::Future;
use std::io;

use config::ConfigError;

use super::cgroup_files::FilesError;
use super::client::{CallError, ConnectError};
use super::target::TargetError;
use super::verbose_info::NotCrisp;

/// A failure that several commands have in common.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("starting the async runtime of this command")]
    Start(#[source] io::Error),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    NotCrisp(#[from] NotCrisp),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("printing the output of this command")]
    Print(#[source] io::Error),
}

/// Runs a command to its end.
pub(super) fn run<F: Future>(command: F) -> io::Result<F::Output> {
    // With a second thread, which receives signals while a command blocks the first one.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    Ok(runtime.block_on(command))
}
