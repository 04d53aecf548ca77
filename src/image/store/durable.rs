//! Small files that survive crashes: written to a temporary file, synced, then renamed.

use std::fs;
use std::io;
use std::path::Path;

use safe_fs::{FileError, at};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::layer::confined_root::DiskUsage;

/// Returns the class: no space is `Exhausted`, a bad link is the fault of the layer, others are
/// internal.
pub(crate) fn io_kind(error: &io::Error) -> model::ErrorKind {
    match error.kind() {
        _ if error.get_ref().is_some_and(|inner| inner.is::<crate::layer::hard_link::BadLink>()) => {
            model::ErrorKind::Invalid
        }
        _ => safe_fs::io_kind(error),
    }
}

/// Replaces `path` with `value` as JSON: after a crash the file has the old or the new content.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let json = serde_json::to_vec(value).map_err(|error| FileError::new("encoding", path, error))?;
    safe_fs::write_durable(path, &json, 0o600, || crash_point(path, "record written aside"))?;
    crash_point(path, "record in place");
    Ok(())
}

/// The result of reading a record.
pub(crate) enum Found<T> {
    Record(T),
    /// The format is not supported by this version.
    OtherVersion(u32),
    /// Missing, empty, damaged, or on a bad part of the disk: a permanent error.
    Spoilt(FileError),
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Reads a record of the format `known`. Returns an error only for transient failures, such as too
/// many open files.
pub(crate) fn read_record<T: DeserializeOwned>(path: &Path, known: u32) -> Result<Found<T>, FileError> {
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

/// Creates a directory with this mode, independent of the umask.
pub(crate) fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    fs::DirBuilder::new().mode(mode).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Creates a directory that only root can enter, or sets its mode.
pub(crate) fn private_directory(path: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at("creating", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(at("setting mode 0700 of", path))
}

/// Returns the disk usage of a single file or directory.
pub(crate) fn disk_usage_of(path: &Path) -> Result<DiskUsage, FileError> {
    Ok(usage_of_metadata(&fs::symlink_metadata(path).map_err(at("weighing", path))?))
}

/// Returns the disk usage of the direct entries of a directory, without the one named `except`.
pub(crate) fn disk_usage_of_entries(directory: &Path, except: &str) -> Result<DiskUsage, FileError> {
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
