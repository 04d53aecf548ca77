//! The directory of network configurations.
//!
//! It is neither watched nor cached: each use of the network reads it again. It has a few small
//! files, so every change is detected: edits in place, renames, a directory that is created or
//! replaced.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use model::{ErrorClass, ErrorKind};
use rustix::fs::{Mode, OFlags};

use super::{ConfError, ConfList};

/// The maximum size of a configuration file.
const FILE_MAX: u64 = 1 << 20;
const FILES_MAX: usize = 1024;

/// A configuration directory that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    #[error("reading the directory of CNI configurations {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} has more than {FILES_MAX} CNI configurations")]
    TooMany { path: PathBuf },
}

impl ErrorClass for DirError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { .. } => ErrorKind::Internal,
            Self::TooMany { .. } => ErrorKind::Precondition,
        }
    }
}

/// A file that is not a valid network configuration.
#[derive(Debug)]
pub struct BadFile {
    pub path: PathBuf,
    pub why: ConfError,
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)?;
        let mut cause = std::error::Error::source(&self.why);
        while let Some(inner) = cause {
            write!(f, ": {inner}")?;
            cause = inner.source();
        }
        Ok(())
    }
}

/// The content of a configuration directory.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The first valid one by name.
    pub(crate) network: Option<(PathBuf, ConfList)>,
    /// Invalid files before it.
    pub(crate) bad: Vec<BadFile>,
}

/// Finds the network in `dir`; a missing directory has none. Blocks on file I/O.
pub(crate) fn find_network(dir: &Path) -> Result<Found, DirError> {
    find_network_besides(dir, None)
}

/// Does the same, but ignores the file `own`.
pub(crate) fn find_network_besides(dir: &Path, own: Option<&OsStr>) -> Result<Found, DirError> {
    let mut found = Found::default();
    for path in configurations(dir)? {
        if own.is_some() && path.file_name() == own {
            continue;
        }
        match read_list(&path) {
            Ok(list) => {
                found.network = Some((path, list));
                break;
            }
            Err(why) => found.bad.push(BadFile { path, why }),
        }
    }
    Ok(found)
}

/// Lists the files in `dir` that are configurations by their names.
pub(crate) fn configurations(dir: &Path) -> Result<Vec<PathBuf>, DirError> {
    files(dir, &["conflist", "conf", "json"])
}

/// Lists the files in `dir` with one of these extensions, by name.
fn files(dir: &Path, endings: &[&str]) -> Result<Vec<PathBuf>, DirError> {
    let failed = |source| DirError::Read { path: dir.to_owned(), source };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let fits = path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one));
        if !fits || entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        paths.push(path);
        if paths.len() > FILES_MAX {
            return Err(DirError::TooMany { path: dir.to_owned() });
        }
    }
    paths.sort();
    Ok(paths)
}

fn read_list(path: &Path) -> Result<ConfList, ConfError> {
    let text = read(path)?;
    if path.extension() != Some(OsStr::new("conflist")) {
        return ConfList::parse_single(&text);
    }
    let mut list = ConfList::parse(&text)?;
    if !list.inlined_only {
        append_beside(path, &mut list)?;
    }
    if list.plugins.is_empty() { Err(ConfError::Missing("plugins")) } else { Ok(list) }
}

/// Adds the plugins with their own files in the directory named after the network.
fn append_beside(path: &Path, list: &mut ConfList) -> Result<(), ConfError> {
    let dir = path.with_file_name(&list.name);
    let read_dir = |error| match error {
        DirError::Read { source, .. } => source,
        error @ DirError::TooMany { .. } => io::Error::other(error),
    };
    // A file may have the name of the network as well.
    let own = match files(&dir, &["conf"]).map_err(read_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(()),
        files => files.map_err(ConfError::Read)?,
    };
    for file in own {
        let append = read(&file).and_then(|text| list.append(&text));
        append.map_err(|source| ConfError::Beside { file: file.display().to_string(), source: Box::new(source) })?;
    }
    Ok(())
}

/// Reads a regular file of limited size. Other types are rejected: a FIFO would block.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ConfError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| ConfError::Read(errno.into()))?;
    let file = File::from(file);
    if !file.metadata().map_err(ConfError::Read)?.is_file() {
        return Err(ConfError::NoFile);
    }
    let mut text = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut text).map_err(ConfError::Read)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > FILE_MAX { Err(ConfError::TooLarge(FILE_MAX)) } else { Ok(text) }
}
