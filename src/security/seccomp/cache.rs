//! One file for each distinct filter, made when it is first wanted.

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
    #[error("the seccomp profile {0} does not exist")]
    Missing(PathBuf),
    #[error("the seccomp profile {0} is no regular file")]
    NotAFile(PathBuf),
    #[error("reading the seccomp profile {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("the seccomp profile {path}")]
    Localhost { path: PathBuf, source: ProfileError },
    #[error("the default seccomp profile")]
    Default(#[source] ProfileError),
    #[error("keeping a seccomp filter")]
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

/// Which profile a container asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileSource<'a> {
    RuntimeDefault,
    /// A file with a profile, by its absolute path.
    Localhost(&'a Path),
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    localhost: Option<PathBuf>,
    caps: CapSet,
}

#[derive(Debug)]
struct CachedFilter {
    /// Of the profile that it was made from.
    stamp: Option<FileStamp>,
    filter: PathBuf,
}

/// The filters of this daemon. Blocks for as long as reading, compiling and writing one takes.
#[derive(Debug)]
pub struct FilterCache {
    dir: PathBuf,
    made: Mutex<HashMap<Key, CachedFilter>>,
}

impl FilterCache {
    /// Keeps them in `dir`, which is made when there is something to keep.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, made: Mutex::default() }
    }

    /// The file with the filter for a container with such capabilities. An edited profile is compiled anew; files
    /// stay, because containers that run may still be entered with them.
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
            tracing::debug!(profile = ?wanted, names = ?compiled.unknown, "skipped unknown system calls");
        }
        let filter = self.store(&compiled.bytes)?;
        made.insert(key, CachedFilter { stamp, filter: filter.clone() });
        Ok(filter)
    }

    /// Named by its content, so one written by an earlier daemon serves again.
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

/// Whether a file has a profile that can be put in force.
pub fn check(path: &Path) -> Result<(), SeccompError> {
    let failed = |source| SeccompError::Localhost { path: path.to_owned(), source };
    let (json, _) = read(path)?;
    Profile::read(&json).and_then(|profile| compile(&profile, &CapSet::default())).map(drop).map_err(failed)
}

/// All of the file, with the stamp of just what was read. Waits for nobody: a pipe is no profile.
fn read(path: &Path) -> Result<(Vec<u8>, FileStamp), SeccompError> {
    let failed = |source| unreadable(path, source);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?);
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(SeccompError::NotAFile(path.to_owned()));
    }
    let mut json = Vec::new();
    // One byte more than allowed, so that too long a profile is seen to be so.
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
