//! Creates private and public directories, lists and removes them.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use crate::error::{FileError, at};
use crate::remove_tree;

/// Creates `path` and its missing parents with mode 0700.
pub fn private_dir(path: &Path) -> Result<(), FileError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(at("creating the directory", path))
}

/// Creates `path` with mode 0755.
pub fn public_dir(path: &Path) -> Result<(), FileError> {
    DirBuilder::new().mode(0o755).create(path).map_err(at("creating the directory", path))
}

/// Changes the owner of `path`.
pub fn chown(path: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<(), FileError> {
    let given = std::os::unix::fs::chown(path, uid, gid);
    given.map_err(at("writing", path))
}

/// Returns the names in a directory; empty if it does not exist.
pub fn list_names(path: &Path) -> Result<Vec<String>, FileError> {
    let failed = |source: io::Error| FileError::new("reading", path, source);
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    entries.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()).map_err(failed)).collect()
}

/// Removes a file. A missing file is not an error.
pub fn remove_file(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::new("removing", path, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a directory and everything in it, even if a container wrote it. A missing one is not an
/// error.
pub fn remove_dir(path: &Path) -> Result<(), FileError> {
    remove_tree::remove_tree(path).map_err(at("removing", path))
}
