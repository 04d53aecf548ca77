//! ReopenContainerLog, and opening a log at all.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{ContainerId, ContainerState, ErrorClass, ErrorKind};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};

use crate::runtime::{LookupError, Runtime};
use crate::sandbox_client::SandboxError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReopenError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("container {0} is not running")]
    NotRunning(ContainerId),
    #[error(transparent)]
    Open(#[from] LogError),
    #[error("handing the log to the shim")]
    Shim(#[from] SandboxError),
}

impl ErrorClass for ReopenError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::NotRunning(_) => ErrorKind::Precondition,
            Self::Open(e) => e.kind(),
            Self::Shim(e) => e.kind(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error("sandbox_config.log_directory: {path}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("config.log_path: {path}")]
    File { path: PathBuf, source: io::Error },
}

impl ErrorClass for LogError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Directory { source, .. } | Self::File { source, .. } => match source.raw_os_error() {
                Some(libc_no_space) if libc_no_space == rustix::io::Errno::NOSPC.raw_os_error() => ErrorKind::Exhausted,
                _ => ErrorKind::Precondition,
            },
        }
    }
}

/// Opens the log for appending. Neither `..` nor a symbolic link leads it out of the pod's directory, which is no link
/// itself; what is above that is the host's affair. A pipe or a device in the log's place is not waited for.
pub(crate) fn open(directory: &Path, path: &Path) -> Result<File, LogError> {
    let above = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // Without what would have the kernel follow a link at the end all the same.
    let plain: PathBuf = directory.components().collect();
    let directory_fd = rustix::fs::open(&plain, above, Mode::empty())
        .map_err(|e| LogError::Directory { path: directory.to_owned(), source: e.into() })?;
    let failed = |source: io::Error| LogError::File { path: directory.join(path), source };
    let mut flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let fd: OwnedFd =
        openat2(directory_fd, path, flags, Mode::from_raw_mode(0o640), how).map_err(|e| failed(e.into()))?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| failed(e.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(failed(io::Error::other("not a regular file")));
    }
    Ok(File::from(fd))
}

impl Runtime {
    pub(crate) async fn reopen_log(self: &Arc<Self>, id: &str) -> Result<(), ReopenError> {
        let record = self.readable_container(id)?.get();
        if !matches!(record.state, ContainerState::Running { .. }) {
            return Err(ReopenError::NotRunning(record.id.clone()));
        }
        let pod = self.pod(record.pod.as_str())?;
        let (Some(directory), Some(path)) = (&pod.spec.log_directory, &record.spec.log_path) else { return Ok(()) };
        let log = open(directory, path)?;
        let sandbox = self.sandbox_of(&record.pod).ok_or_else(|| ReopenError::NotRunning(record.id.clone()))?;
        Ok(sandbox.reopen_log(record.id.clone(), log.as_fd()).await?)
    }
}
