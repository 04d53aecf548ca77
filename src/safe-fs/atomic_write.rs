//! Replaces small files atomically, with or without a sync.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{FileError, at};

/// Replaces `path` atomically with `value` as JSON, for root only. Does not sync: the state directory is a tmpfs.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    write_json_with_mode(path, value, 0o600)
}

/// Like [`write_json`], for a file that other users may read.
pub fn write_readable_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    write_json_with_mode(path, value, 0o644)
}

fn write_json_with_mode<T: Serialize>(path: &Path, value: &T, mode: u32) -> Result<(), FileError> {
    let bytes = serde_json::to_vec(value).map_err(|e| FileError::new("writing", path, e))?;
    replace(path, &bytes, mode)
}

/// Does the same as [`write_readable_json`] in a directory that another user may write: opens no file and follows no
/// link that is there already.
pub fn write_shared_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let bytes = serde_json::to_vec(value).map_err(|e| FileError::new("writing", path, e))?;
    let new = new_name(path);
    fs::remove_file(&new).ok();
    let written = File::options().write(true).create_new(true).mode(0o644).open(&new).and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(&bytes)
    });
    written.and_then(|()| fs::rename(&new, path)).map_err(|source| {
        fs::remove_file(&new).ok();
        FileError::new("writing", path, source)
    })
}

/// Replaces `path` atomically with `bytes`. Does not sync.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    replace(path, bytes, 0o666)
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let new = new_name(path);
    let written = create(&new, mode).and_then(|mut file| file.write_all(bytes));
    let done = written.and_then(|()| fs::rename(&new, path));
    done.map_err(|source| {
        fs::remove_file(&new).ok();
        FileError::new("writing", path, source)
    })
}

/// Replaces `path` atomically with `bytes`; after a crash of the machine it has its old or its new content.
///
/// Calls `before_rename` when the new content is on the disk beside `path`: tests simulate a crash there.
pub fn write_durable(path: &Path, bytes: &[u8], mode: u32, before_rename: impl FnOnce()) -> Result<(), FileError> {
    let new = new_name(path);
    let write = || {
        let mut file = create(&new, mode).map_err(at("creating", &new))?;
        file.write_all(bytes).map_err(at("writing", &new))?;
        file.sync_all().map_err(at("syncing", &new))?;
        before_rename();
        fs::rename(&new, path).map_err(at("renaming into place", path))
    };
    write().inspect_err(|_| {
        fs::remove_file(&new).ok();
    })?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Makes renames and removals in a directory durable by syncing it.
pub fn sync_dir(path: &Path) -> Result<(), FileError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(at("syncing", path))
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(mode).open(path)
}

/// Does the same as [`write_json`] for a file that no process reads at the same time: exchanges the
/// old and the new file and reuses the old one at the next call. On a disk, a rename over an
/// existing file or a truncation makes ext4 write the data immediately.
pub fn overwrite_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let failed = |source: io::Error| FileError::new("writing", path, source);
    let bytes = serde_json::to_vec(value).map_err(|e| failed(e.into()))?;
    let new = new_name(path);
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&new).map_err(failed)?;
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
    let failed = |source: io::Error| FileError::new("reading", path, source);
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| failed(e.into())),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_a_shared_directory_is_replaced_and_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, outside) = (dir.path().join("shared.json"), dir.path().join("outside"));
        fs::write(&outside, "mine").unwrap();
        for name in ["shared.json", "shared.json.new"] {
            std::os::unix::fs::symlink(&outside, dir.path().join(name)).unwrap();
        }
        write_shared_json(&path, &5).unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "mine");
        assert_eq!(fs::read_to_string(&path).unwrap(), "5");
        let about = fs::symlink_metadata(&path).unwrap();
        assert_eq!((about.is_file(), about.permissions().mode() & 0o777), (true, 0o644));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        write_shared_json(&path, &6).unwrap_err();
        assert!(!new_name(&path).exists());
    }

    #[test]
    fn a_record_stays_readable_for_its_owner_only_when_it_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        write_json(&path, &1).unwrap();
        for value in [2, 3] {
            overwrite_json(&path, &value).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{value}");
            assert_eq!(read_json::<i32>(&path).unwrap(), Some(value));
        }
        let readable = dir.path().join("config.json");
        write_readable_json(&readable, &4).unwrap();
        assert_eq!(fs::metadata(&readable).unwrap().permissions().mode() & 0o777, 0o644);
    }
}
