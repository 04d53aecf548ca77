//! Detects changed files by their identity, size, owner, mode and times.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The identity, size, owner, mode and times of a file. Two equal stamps mean the same content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileStamp {
    file: (u64, u64),
    size: u64,
    mode: u32,
    owner: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// Reads the stamp of the file at `path`; `None` if it does not exist or cannot be read.
    pub fn read(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|meta| Self::of(&meta))
    }

    pub fn of(meta: &Metadata) -> Self {
        Self {
            file: (meta.dev(), meta.ino()),
            size: meta.size(),
            mode: meta.mode(),
            owner: meta.uid(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Returns the time of the last change of content or metadata, as seconds and nanoseconds.
    pub fn changed(&self) -> (i64, i64) {
        self.changed
    }
}
