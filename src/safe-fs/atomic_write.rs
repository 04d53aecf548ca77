//! Atomic replacement of small files.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::FileError;

/// Replaces `path` atomically with `value` as JSON. Does not sync: the state directory is a tmpfs.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let bytes = serde_json::to_vec(value).map_err(|e| FileError::Write { path: path.to_owned(), source: e.into() })?;
    write(path, &bytes)
}

/// Replaces `path` atomically with `bytes`. Does not sync.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    let new = new_name(path);
    fs::write(&new, bytes).and_then(|()| fs::rename(&new, path)).map_err(failed)
}

/// Does the same as [`write_json`] for a file that no process reads at the same time: exchanges the
/// old and the new file and reuses the old one at the next call. On a disk, a rename over an
/// existing file or a truncation makes ext4 write the data immediately.
pub fn overwrite_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    let bytes = serde_json::to_vec(value).map_err(|e| failed(e.into()))?;
    let new = new_name(path);
    let file = File::options().write(true).create(true).truncate(false).open(&new).map_err(failed)?;
    file.write_all_at(&bytes, 0).map_err(failed)?;
    file.set_len(u64::try_from(bytes.len()).unwrap_or(u64::MAX)).map_err(failed)?;
    match renameat_with(CWD, &new, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => fs::rename(&new, path).map_err(failed),
        Err(errno) => Err(failed(errno.into())),
    }
}

fn new_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Reads a file as JSON; returns `None` if it does not exist.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| failed(e.into())),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}
