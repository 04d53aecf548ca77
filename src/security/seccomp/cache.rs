//! Caches compiled filters, one file for each distinct filter, written on first use.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use model::{ErrorClass, ErrorKind};
use rustix::fs::{Mode, OFlags};
use safe_fs::{FileError, FileStamp};
use sha2::{Digest as _, Sha256};
use sync::Mutex;

use super::compile::compile;
use super::default_profile::runtime_default;
use super::profile::{CapSet, LONGEST, Profile, ProfileError};

#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("seccomp profile {0} not found")]
    Missing(PathBuf),
    #[error("seccomp profile {0} is not a regular file")]
    NotAFile(PathBuf),
    #[error("reading seccomp profile {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("compiling seccomp profile {path}")]
    Localhost { path: PathBuf, source: ProfileError },
    #[error("compiling the default seccomp profile")]
    Default(#[source] ProfileError),
    #[error("storing a compiled seccomp profile")]
    Keep(#[from] FileError),
}

impl ErrorClass for SeccompError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing(_) | Self::NotAFile(_) => ErrorKind::Invalid,
            Self::Localhost { source, .. } => source.kind(),
            Self::Read { .. } | Self::Default(_) => ErrorKind::Internal,
            Self::Keep(source) => source.kind(),
        }
    }
}

/// The source of a container's profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileSource<'a> {
    RuntimeDefault,
    /// The absolute path of a file with a profile.
    Localhost(&'a Path),
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    localhost: Option<PathBuf>,
    caps: CapSet,
}

#[derive(Debug)]
struct CachedFilter {
    /// The stamp of the profile that was compiled.
    stamp: Option<FileStamp>,
    filter: PathBuf,
}

/// The filters of this daemon. Blocks while it reads, compiles and writes a filter.
#[derive(Debug)]
pub struct FilterCache {
    dir: PathBuf,
    made: Mutex<HashMap<Key, CachedFilter>>,
}

impl FilterCache {
    /// Stores filters in `dir`, which is created for the first one.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, made: Mutex::default() }
    }

    /// Returns the file with the filter for a container with the capabilities `caps`. A changed profile
    /// is compiled again; old files are kept, because exec into running containers still needs them.
    pub fn path_for(&self, wanted: ProfileSource<'_>, caps: &CapSet) -> Result<PathBuf, SeccompError> {
        let (localhost, stamp) = match wanted {
            ProfileSource::RuntimeDefault => (None, None),
            ProfileSource::Localhost(path) => {
                let found = fs::metadata(path).map_err(|source| unreadable(path, source))?;
                (Some(path.to_owned()), Some(FileStamp::of(&found)))
            }
        };
        let key = Key { localhost, caps: caps.clone() };
        let mut made = self.made.lock();
        if let Some(known) = made.get(&key)
            && known.stamp == stamp
            && known.filter.exists()
        {
            return Ok(known.filter.clone());
        }
        let (compiled, stamp) = match wanted {
            ProfileSource::RuntimeDefault => (compile(&runtime_default(), caps).map_err(SeccompError::Default)?, None),
            ProfileSource::Localhost(path) => {
                let failed = |source| SeccompError::Localhost { path: path.to_owned(), source };
                let (json, stamp) = read(path)?;
                (Profile::read(&json).and_then(|profile| compile(&profile, caps)).map_err(failed)?, Some(stamp))
            }
        };
        if !compiled.unknown.is_empty() {
            tracing::debug!(profile = ?wanted, names = ?compiled.unknown, "a container's seccomp profile has system calls that this crisp release does not know; ignored them");
        }
        let filter = self.store(&compiled.bytes)?;
        made.insert(key, CachedFilter { stamp, filter: filter.clone() });
        Ok(filter)
    }

    /// Writes a file named by its content, so that filters of an earlier daemon are reused.
    fn store(&self, bytes: &[u8]) -> Result<PathBuf, FileError> {
        let short: String = Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let path = self.dir.join(short + ".bpf");
        if fs::read(&path).is_ok_and(|kept| kept == bytes) {
            return Ok(path);
        }
        safe_fs::private_dir(&self.dir)?;
        safe_fs::write(&path, bytes)?;
        Ok(path)
    }
}

/// Checks that a file has a valid profile.
pub fn check(path: &Path) -> Result<(), SeccompError> {
    let failed = |source| SeccompError::Localhost { path: path.to_owned(), source };
    let (json, _) = read(path)?;
    Profile::read(&json).and_then(|profile| compile(&profile, &CapSet::default())).map(drop).map_err(failed)
}

/// Reads the file and the stamp of the version that was read. NONBLOCK: open(2) of a FIFO must not wait.
fn read(path: &Path) -> Result<(Vec<u8>, FileStamp), SeccompError> {
    let failed = |source| unreadable(path, source);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?);
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(SeccompError::NotAFile(path.to_owned()));
    }
    let mut json = Vec::new();
    // One byte more than allowed, to detect a profile that is too long.
    file.take(LONGEST + 1).read_to_end(&mut json).map_err(failed)?;
    Ok((json, FileStamp::of(&found)))
}

fn unreadable(path: &Path, source: io::Error) -> SeccompError {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => SeccompError::Missing(path.to_owned()),
        _ => SeccompError::Read { path: path.to_owned(), source },
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
