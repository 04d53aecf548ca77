//! Small files that survive crashes: written aside, synced, then renamed into place.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A file of the store that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}", path.display())]
pub struct DiskError {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl DiskError {
    /// The class of this error.
    pub fn kind(&self) -> model::Kind {
        io_kind(&self.source)
    }
}

/// For `map_err`: what was being done to which path.
pub(crate) fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError { doing, path, source }
}

/// A full disk or quota is the operator's to solve, a bad layer its maker's, the rest is ours.
pub(crate) fn io_kind(error: &io::Error) -> model::Kind {
    match error.kind() {
        _ if error.get_ref().is_some_and(|inner| inner.is::<crate::link::BadLink>()) => model::Kind::Invalid,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => model::Kind::Exhausted,
        _ => model::Kind::Internal,
    }
}

/// Writes `content` to `path` in one step: after a crash the old content or the new is there, whole.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<(), DiskError> {
    let aside = path.with_extension("new");
    let mut file = File::create(&aside).map_err(at("creating", &aside))?;
    file.write_all(content).map_err(at("writing", &aside))?;
    file.sync_all().map_err(at("syncing", &aside))?;
    fs::rename(&aside, path).map_err(at("renaming into place", path))?;
    match path.parent() {
        Some(directory) => sync(directory),
        None => Ok(()),
    }
}

/// [`write`] of a value as JSON.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), DiskError> {
    let json = serde_json::to_vec(value).map_err(|error| at("encoding", path)(error.into()))?;
    write(path, &json)
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, DiskError> {
    let json = fs::read(path).map_err(at("reading", path))?;
    serde_json::from_slice(&json).map_err(|error| at("parsing", path)(error.into()))
}

/// Makes renames and removals in `directory` durable.
pub(crate) fn sync(directory: &Path) -> Result<(), DiskError> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(at("syncing", directory))
}

/// Makes a directory only root can enter, or makes it so.
pub(crate) fn private_directory(path: &Path) -> Result<(), DiskError> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at("creating", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(at("closing to others", path))
}

/// Removes a tree if it is there.
pub(crate) fn remove_tree(path: &Path) -> Result<(), DiskError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at("removing", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a file if it is there.
pub(crate) fn remove_file(path: &Path) -> Result<(), DiskError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at("removing", path)(error)),
        _ => Ok(()),
    }
}
