//! Small files that survive crashes: written to a temporary file, synced, then renamed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::layer::confined_root::DiskUsage;

/// A read or write of a file of the store that failed.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}", path.display())]
pub struct DiskError {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl model::ErrorClass for DiskError {
    fn kind(&self) -> model::ErrorKind {
        io_kind(&self.source)
    }
}

/// For `map_err`: adds the operation and the path.
pub(crate) fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError { doing, path, source }
}

/// Returns the class: no space is `Exhausted`, a bad link is the fault of the layer, others are
/// internal.
pub(crate) fn io_kind(error: &io::Error) -> model::ErrorKind {
    match error.kind() {
        _ if error.get_ref().is_some_and(|inner| inner.is::<crate::layer::hard_link::BadLink>()) => {
            model::ErrorKind::Invalid
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => model::ErrorKind::Exhausted,
        _ => model::ErrorKind::Internal,
    }
}

/// Writes `content` to `path` atomically: after a crash the file has the old or the new content.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<(), DiskError> {
    let aside = path.with_extension("new");
    let placed = write_aside(&aside, content).and_then(|()| {
        crash_point(path, "record written aside");
        fs::rename(&aside, path).map_err(at("renaming into place", path))
    });
    if placed.is_err() {
        // If this fails, the file is removed when the store is opened.
        fs::remove_file(&aside).ok();
    }
    placed?;
    crash_point(path, "record in place");
    match path.parent() {
        Some(directory) => sync(directory),
        None => Ok(()),
    }
}

fn write_aside(aside: &Path, content: &[u8]) -> Result<(), DiskError> {
    let mut file = File::create(aside).map_err(at("creating", aside))?;
    file.write_all(content).map_err(at("writing", aside))?;
    file.sync_all().map_err(at("syncing", aside))
}

/// Writes a value as JSON with [`write`].
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), DiskError> {
    let json = serde_json::to_vec(value).map_err(|error| at("encoding", path)(error.into()))?;
    write(path, &json)
}

/// The result of reading a record.
pub(crate) enum Found<T> {
    Record(T),
    /// The format is not supported by this version.
    OtherVersion(u32),
    /// Missing, empty, damaged, or on a bad part of the disk: a permanent error.
    Spoilt(DiskError),
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Reads a record of the format `known`. Returns an error only for transient failures, such as too
/// many open files.
pub(crate) fn read_record<T: DeserializeOwned>(path: &Path, known: u32) -> Result<Found<T>, DiskError> {
    let json = match fs::read(path) {
        Ok(json) => json,
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_io_error(&error) => {
            return Ok(Found::Spoilt(at("reading", path)(error)));
        }
        Err(error) => return Err(at("reading", path)(error)),
    };
    // Check the format first: another one may look damaged.
    let parsed = serde_json::from_slice::<Versioned>(&json).and_then(|Versioned { version }| {
        if version != known {
            Ok(Found::OtherVersion(version))
        } else {
            serde_json::from_slice(&json).map(Found::Record)
        }
    });
    Ok(parsed.unwrap_or_else(|error| Found::Spoilt(at("parsing", path)(error.into()))))
}

fn is_io_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Makes renames and removals in `directory` durable by syncing it.
pub(crate) fn sync(directory: &Path) -> Result<(), DiskError> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(at("syncing", directory))
}

/// Creates a directory with this mode, independent of the umask.
pub(crate) fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    fs::DirBuilder::new().mode(mode).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Creates a directory that only root can enter, or sets its mode.
pub(crate) fn private_directory(path: &Path) -> Result<(), DiskError> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at("creating", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(at("setting mode 0700 of", path))
}

/// Removes a tree if it exists.
pub(crate) fn remove_tree(path: &Path) -> Result<(), DiskError> {
    safe_fs::remove_tree::remove_tree(path).map_err(at("removing", path))
}

/// Removes a file if it exists.
pub(crate) fn remove_file(path: &Path) -> Result<(), DiskError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at("removing", path)(error)),
        _ => Ok(()),
    }
}

/// Returns the disk usage of a single file or directory.
pub(crate) fn disk_usage_of(path: &Path) -> Result<DiskUsage, DiskError> {
    Ok(usage_of_metadata(&fs::symlink_metadata(path).map_err(at("weighing", path))?))
}

/// Returns the disk usage of the direct entries of a directory, without the one named `except`.
pub(crate) fn disk_usage_of_entries(directory: &Path, except: &str) -> Result<DiskUsage, DiskError> {
    let mut usage = DiskUsage::default();
    let mut add = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) => {
            usage.add(usage_of_metadata(&metadata));
            Ok(())
        }
        // Removed since the directory was listed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    let weighed = fs::read_dir(directory).and_then(|mut entries| {
        entries
            .try_for_each(|entry| entry.and_then(|entry| if entry.file_name() == except { Ok(()) } else { add(entry) }))
    });
    weighed.map_err(at("weighing", directory))?;
    Ok(usage)
}

fn usage_of_metadata(metadata: &fs::Metadata) -> DiskUsage {
    use std::os::unix::fs::MetadataExt;
    DiskUsage { bytes: metadata.blocks().saturating_mul(512), inodes: 1 }
}

/// A step at which the process may crash; tests inspect the disk here.
#[cfg(not(test))]
#[inline]
pub(crate) fn crash_point(_: &Path, _: &'static str) {}

#[cfg(test)]
pub(crate) use crate::store::crash_points::crash_point;
