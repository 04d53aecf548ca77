//! The error of a file operation.

use std::io;
use std::path::{Path, PathBuf};

use model::{ErrorClass, ErrorKind};

/// A file or directory that could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}", path.display())]
pub struct FileError {
    doing: &'static str,
    path: PathBuf,
    kind: ErrorKind,
    source: io::Error,
}

impl FileError {
    pub fn new(doing: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        Self { doing, path: path.into(), kind: io_kind(&source), source }
    }

    /// Sets the class, if the operation knows more than the kernel's error.
    pub fn with_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }
}

impl ErrorClass for FileError {
    fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// For `map_err`: adds the operation and the path.
pub fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError + use<> {
    let path = path.to_owned();
    move |source| FileError::new(doing, path, source)
}

/// Returns the class: no space is `Exhausted`, others are internal.
pub fn io_kind(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Exhausted,
        _ => ErrorKind::Internal,
    }
}
