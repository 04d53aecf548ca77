//! Paths of the client's choice: the log, and the sources of mounts.
//!
//! Their file system may hang forever, and with it a process that opens them. So neither the daemon
//! nor the shim does, but a short-lived process that both can abandon.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use model::error_chain::chain;
use model::{ErrorClass as _, ErrorKind};
use nix::unistd::Pid;
use safe_fs::log_file::{LogError, open_log};
use shim_protocol::{LaunchConfig, LogPath, ShimErrorKind};
use sys::fork::SingleThread;

use super::report::{Report, send, truncate};

/// A path of the request that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    #[error("{}", chain(.0))]
    Log(#[from] LogError),
    #[error("opening the mount source {path}: {source}")]
    MountSource { path: PathBuf, source: io::Error },
}

impl PathError {
    pub(crate) fn kind(&self) -> ShimErrorKind {
        match self {
            Self::Log(error) if error.kind() == ErrorKind::Exhausted => ShimErrorKind::Exhausted,
            Self::Log(_) => ShimErrorKind::State,
            Self::MountSource { .. } => ShimErrorKind::Invalid,
        }
    }
}

/// Creates missing sources of mounts as directories, as containerd and CRI-O do, and sends the open
/// log to the shim.
pub(super) fn prepare(config: &LaunchConfig, report: &OwnedFd) -> Result<(), PathError> {
    make_mount_sources(config)?;
    if let Some(log) = &config.log {
        send(report, &Report::Log, &[open_log(&log.directory, &log.file)?.as_fd()]);
    }
    Ok(())
}

fn make_mount_sources(config: &LaunchConfig) -> Result<(), PathError> {
    config.mount_sources.iter().try_for_each(|path| {
        let created = match std::fs::metadata(path) {
            Ok(_) => Ok(()),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => std::fs::create_dir_all(path),
            Err(error) => Err(error),
        };
        created.map_err(|source| PathError::MountSource { path: path.clone(), source })
    })
}

/// Starts a process that opens a log. It sends the file, or the error, to the returned socket.
pub fn spawn_log_opener(log: &LogPath) -> io::Result<(Pid, OwnedFd)> {
    let (ours, theirs) = sys::seqpacket::pair()?;
    let opener = sys::fork::fork(SingleThread::check()?, || {
        if sys::fork::close_all_but(&[theirs.as_fd()]).is_err() {
            return 1;
        }
        match open_log(&log.directory, &log.file).map_err(PathError::from) {
            Ok(file) => send(&theirs, &Report::Log, &[file.as_fd()]),
            Err(error) => {
                send(&theirs, &Report::Refused { kind: error.kind(), message: truncate(error.to_string()) }, &[])
            }
        }
        0
    })?;
    Ok((opener, ours))
}
