//! The directory that networks are configured in.
//!
//! Nothing is watched and nothing is remembered: whoever needs the network reads the directory. It holds a few small files,
//! and so no way to change them goes unseen: edits in place, renames, a directory that appears later or is another one now.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use model::{ErrorClass, ErrorKind};
use rustix::fs::{Mode, OFlags};

use super::{ConfError, ConfList};

/// More than any network needs.
const FILE_MAX: u64 = 1 << 20;
const FILES_MAX: usize = 1024;

/// The directory of networks cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    #[error("reading the directory {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} has more than {FILES_MAX} configurations")]
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

/// A file that is no network, and why.
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

/// What a directory holds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The first one by name that is valid.
    pub(crate) network: Option<(PathBuf, ConfList)>,
    /// Those before it.
    pub(crate) bad: Vec<BadFile>,
}

/// Finds the network in `dir`; a directory that does not exist has none. Blocks for a moment.
pub(crate) fn find_network(dir: &Path) -> Result<Found, DirError> {
    find_network_besides(dir, None)
}

/// The same as if there were no file `own`.
pub(crate) fn find_network_besides(dir: &Path, own: Option<&OsStr>) -> Result<Found, DirError> {
    let mut found = Found::default();
    for path in files(dir, &["conflist", "conf", "json"])? {
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

/// The files in `dir` with one of these endings, by name.
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

/// Adds the plugins that have files of their own, in the directory that has the network's name.
fn append_beside(path: &Path, list: &mut ConfList) -> Result<(), ConfError> {
    let dir = path.with_file_name(&list.name);
    let read_dir = |error| match error {
        DirError::Read { source, .. } => source,
        error @ DirError::TooMany { .. } => io::Error::other(error),
    };
    // The network's name may just as well be that of a file.
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

/// Reads a file whole, whatever it is: nothing but a regular file of some size, and no pipe that nobody writes into.
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
