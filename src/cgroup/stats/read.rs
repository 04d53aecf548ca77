//! Reads many small files of the kernel with one buffer.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{ErrorClass, ErrorKind};
use rustix::io::Errno;

use crate::file_cache::FileCache;

/// A file that exists and cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("reading cgroup statistics from {path}")]
pub struct ReadError {
    path: PathBuf,
    source: io::Error,
}

impl ErrorClass for ReadError {
    fn kind(&self) -> ErrorKind {
        match Errno::from_io_error(&self.source) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => ErrorKind::Exhausted,
            _ => ErrorKind::Internal,
        }
    }
}

/// A buffer for files that are read one after another.
#[derive(Debug)]
pub struct ReadBuffer {
    buffer: Vec<u8>,
    /// The cgroup that is read now.
    kept: Option<Arc<FileCache>>,
}

/// Longer than any file here, so that one read(2) is enough.
const ROOM: usize = 8 << 10;
/// Files of the kernel that are read here are shorter.
const ROOM_MAX: usize = 1 << 20;

impl Default for ReadBuffer {
    fn default() -> Self {
        Self { buffer: vec![0; ROOM], kept: None }
    }
}

impl ReadBuffer {
    /// Selects the cgroup of the next reads.
    pub(super) fn turn_to(&mut self, kept: Option<&Arc<FileCache>>) {
        self.kept = kept.cloned();
    }

    /// Returns the content of the file; `None` if the file or its cgroup does not exist.
    pub(super) fn text(&mut self, dir: &Path, file: &str) -> Result<Option<&str>, ReadError> {
        let path = dir.join(file);
        match self.fill(&path) {
            Ok(length) => Ok(std::str::from_utf8(&self.buffer[..length]).ok()),
            Err(e) if absent(&e) => Ok(None),
            Err(source) => Err(ReadError { path, source }),
        }
    }

    /// Returns the number that is the whole file.
    pub(super) fn number(&mut self, dir: &Path, file: &str) -> Result<Option<u64>, ReadError> {
        Ok(self.text(dir, file)?.and_then(|text| text.trim().parse().ok()))
    }

    fn fill(&mut self, path: &Path) -> io::Result<usize> {
        if let Some(kept) = &self.kept {
            let read = kept.read(path, &mut self.buffer)?;
            if read < self.buffer.len() {
                return Ok(read);
            }
        }
        let mut file = File::open(path)?;
        let mut length = 0;
        loop {
            match file.read(&mut self.buffer[length..]) {
                // The kernel creates these files for each read, so a read that does not fill the
                // buffer has the whole file.
                Ok(read) if length + read < self.buffer.len() => return Ok(length + read),
                Ok(_) if self.buffer.len() >= ROOM_MAX => return Err(io::ErrorKind::FileTooLarge.into()),
                Ok(read) => {
                    length += read;
                    self.buffer.resize(self.buffer.len() * 2, 0);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// No such file, a removed cgroup, or a kernel with this counter disabled.
pub(crate) fn absent(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::OPNOTSUPP))
}

/// The values of `keys` in a text of lines `key value`.
pub(crate) fn keyed<const N: usize>(text: &str, keys: [&str; N]) -> [Option<u64>; N] {
    let mut values = [None; N];
    for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        if let Some(index) = keys.iter().position(|key| *key == name) {
            values[index] = value.trim().parse().ok();
        }
    }
    values
}
