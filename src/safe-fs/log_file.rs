//! Opens a container's log in a directory that other programs can write to.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use model::{ErrorClass, ErrorKind};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};

/// A log that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("opening the pod's log_directory {path}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("opening the container's log_path {path}")]
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

/// Opens the log for appending. Neither `..` nor a symbolic link leads outside of the pod's
/// directory, which must not be a link. A pipe or device in its place does not block; a hanging
/// file system blocks the calling thread.
pub fn open_log(directory: &Path, path: &Path) -> Result<File, LogError> {
    let above = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // Without a trailing `/` or `/.`, with which the kernel would follow a link at the end.
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
