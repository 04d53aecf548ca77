//! The error of a file operation.

use std::io;
use std::path::PathBuf;

use model::{ErrorClass, ErrorKind};

/// A file or directory that could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("creating the directory {path}")]
    MakeDir { path: PathBuf, source: io::Error },
    #[error("writing {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("reading {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("removing {path}")]
    Remove { path: PathBuf, source: io::Error },
    #[error("mounting a file system at {path}")]
    Mount { path: PathBuf, source: io::Error },
}

impl ErrorClass for FileError {
    fn kind(&self) -> ErrorKind {
        let (Self::MakeDir { source, .. }
        | Self::Write { source, .. }
        | Self::Read { source, .. }
        | Self::Remove { source, .. }
        | Self::Mount { source, .. }) = self;
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Exhausted,
            _ => ErrorKind::Internal,
        }
    }
}
