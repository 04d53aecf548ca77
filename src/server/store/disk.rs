//! Where things lie, and how records are written.
//!
//! ```text
//! STATE/pods/POD/            all of a pod's runtime state; on a tmpfs, so no record outlives a reboot
//!   intent.json              written before anything else is made: what to clear away
//!   pod.json                 the record; the pod exists once it is there
//!   shim.sock shim.pid shim.start shim.log netns shm/
//!   etc/                     a small file system: resolv.conf hostname hosts
//!   containers/CONTAINER/    the same for a container
//!     intent.json container.json config.json launch.json exit.json resize.json rootfs/ libcontainer/
//!     X.new                  what X held before, and is to hold next
//! STATE/above.json           the cgroups that were made above those of pods
//! ROOT/containers/CONTAINER/ its writable layer: upper/ work/, and owner: the path of the directory above;
//!                            volumes/N: what its image declares, in the order of their paths
//! ROOT/cni/                  what CNI plugins connected, and with which configuration
//! ```

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};

use model::{Classed, ContainerId, Kind, PodId};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::tree;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error("making the directory {path}")]
    MakeDir { path: PathBuf, source: io::Error },
    #[error("writing {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("reading {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("removing {path}")]
    Remove { path: PathBuf, source: io::Error },
    #[error("mounting a file system at {path}")]
    Mount { path: PathBuf, source: io::Error },
}

impl Classed for DiskError {
    fn kind(&self) -> Kind {
        let (Self::MakeDir { source, .. }
        | Self::Write { source, .. }
        | Self::Read { source, .. }
        | Self::Remove { source, .. }
        | Self::Mount { source, .. }) = self;
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::Exhausted,
            _ => Kind::Internal,
        }
    }
}

/// The two directories of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) state: PathBuf,
    pub(crate) root: PathBuf,
}

impl Layout {
    pub(crate) fn pods(&self) -> PathBuf {
        self.state.join("pods")
    }

    pub(crate) fn pod(&self, id: &PodId) -> PathBuf {
        self.pods().join(id.as_str())
    }

    pub(crate) fn containers(&self, pod: &PodId) -> PathBuf {
        self.pod(pod).join("containers")
    }

    pub(crate) fn container(&self, pod: &PodId, id: &ContainerId) -> PathBuf {
        self.containers(pod).join(id.as_str())
    }

    /// What was made above the cgroups of pods.
    pub(crate) fn above(&self) -> PathBuf {
        self.state.join("above.json")
    }

    /// Where all writable layers are.
    pub(crate) fn writables(&self) -> PathBuf {
        self.root.join("containers")
    }

    /// What CNI connected.
    pub(crate) fn cni(&self) -> PathBuf {
        self.root.join("cni")
    }

    pub(crate) fn writable(&self, id: &ContainerId) -> PathBuf {
        self.writables().join(id.as_str())
    }
}

/// Makes `path` and what is above it, for root alone.
pub(crate) fn private_dir(path: &Path) -> Result<(), DiskError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| DiskError::MakeDir { path: path.to_owned(), source })
}

/// Makes `path` as a container's user shall see it: the root of a file system is open to all.
pub(crate) fn public_dir(path: &Path) -> Result<(), DiskError> {
    let failed = |source| DiskError::MakeDir { path: path.to_owned(), source };
    DirBuilder::new().mode(0o755).create(path).map_err(failed)
}

/// Gives `path` to another owner.
pub(crate) fn give(path: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<(), DiskError> {
    let given = std::os::unix::fs::chown(path, uid, gid);
    given.map_err(|source| DiskError::Write { path: path.to_owned(), source })
}

/// Writes whole or not at all. Not synced: the state directory does not outlive the kernel.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), DiskError> {
    let bytes = serde_json::to_vec(value).map_err(|e| DiskError::Write { path: path.to_owned(), source: e.into() })?;
    write(path, &bytes)
}

pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    let failed = |source| DiskError::Write { path: path.to_owned(), source };
    let new = new_name(path);
    fs::write(&new, bytes).and_then(|()| fs::rename(&new, path)).map_err(failed)
}

/// The same, faster, for a file that nobody reads while it is written: the old one and the new one change places, and the
/// old one is written over the next time. Where the state directory is on a disk, file systems take a file that is
/// replaced or emptied for precious and write it out at once.
pub(crate) fn overwrite_json<T: Serialize>(path: &Path, value: &T) -> Result<(), DiskError> {
    let failed = |source| DiskError::Write { path: path.to_owned(), source };
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

/// What is in the file; none when there is no such file.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, DiskError> {
    let failed = |source| DiskError::Read { path: path.to_owned(), source };
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| failed(e.into())),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// The names in a directory; none when it does not exist.
pub(crate) fn names_in(path: &Path) -> Result<Vec<String>, DiskError> {
    let failed = |source| DiskError::Read { path: path.to_owned(), source };
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    entries.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()).map_err(failed)).collect()
}

/// Removes a file; one that is not there is no failure.
pub(crate) fn remove_file(path: &Path) -> Result<(), DiskError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(DiskError::Remove { path: path.to_owned(), source: error })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a directory and all in it, whoever made that; one that is not there is no failure.
pub(crate) fn remove_dir(path: &Path) -> Result<(), DiskError> {
    tree::remove(path).map_err(|source| DiskError::Remove { path: path.to_owned(), source })
}
