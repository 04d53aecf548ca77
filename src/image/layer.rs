//! Layers on disk: staged while they are unpacked, kept once they are whole and synced.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Gid, Mode, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::disk;
use crate::root::{Root, Weight};

/// A layer's own record, `layer.json` beside its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    pub(crate) version: u32,
    pub(crate) chain_id: Digest,
    pub(crate) diff_id: Digest,
    pub(crate) parent: Option<Digest>,
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// A layer that images and containers can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layer {
    /// Its directory under `layers/`.
    pub(crate) number: u64,
    pub(crate) record: LayerRecord,
}

/// An unpacked layer that is not yet part of the store; dropped without being kept, it is removed.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) number: u64,
    pub(crate) directory: PathBuf,
    pub(crate) record: LayerRecord,
    implied: BTreeSet<PathBuf>,
    kept: AtomicBool,
}

impl Staged {
    pub(crate) fn new(
        number: u64,
        directory: PathBuf,
        chain_id: Digest,
        diff_id: Digest,
        parent: Option<Digest>,
    ) -> Self {
        let record = LayerRecord { version: 1, chain_id, diff_id, parent, bytes: 0, inodes: 0 };
        Self { number, directory, record, implied: BTreeSet::new(), kept: AtomicBool::new(false) }
    }

    pub(crate) fn files(&self) -> PathBuf {
        self.directory.join("fs")
    }

    pub(crate) fn unpacked(&mut self, implied: BTreeSet<PathBuf>, weight: Weight) {
        self.implied = implied;
        self.record.bytes = weight.bytes;
        self.record.inodes = weight.inodes;
    }

    /// From now on the directory is the store's: dropping this does not remove it.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }

    /// Gives directories that the layer implied but did not list the looks they have in the layers below.
    ///
    /// Without this such a directory would show up with our default owner and mode instead of the image's.
    pub(crate) fn adopt(&self, below: &[PathBuf]) -> io::Result<()> {
        if self.implied.is_empty() || below.is_empty() {
            return Ok(());
        }
        let own = Root::open(&self.files())?;
        let below = below.iter().map(|path| Root::open(path)).collect::<io::Result<Vec<_>>>()?;
        // Deepest first: setting a directory's looks leaves the time of the one above alone.
        for path in self.implied.iter().rev() {
            for lower in &below {
                match lower.directory(path) {
                    Ok(model) => {
                        copy_looks(&model, &own.directory(path)?)?;
                        break;
                    }
                    Err(error) if is(&error, Errno::NOENT) => {}
                    // A file or whiteout: the directory is new in this layer.
                    Err(error) if is(&error, Errno::NOTDIR) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Acquire)
            && let Err(error) = disk::remove_tree(&self.directory)
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "a half-unpacked layer stays until restart");
        }
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn copy_looks(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(&from)?;
    rustix::fs::fchown(&to, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    let mut names = vec![0u8; 64 * 1024];
    let length = rustix::fs::flistxattr(&from, &mut names[..])?;
    for name in names[..length].split(|&b| b == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0u8; 64 * 1024];
        let length = rustix::fs::fgetxattr(&from, name, &mut value[..])?;
        rustix::fs::fsetxattr(&to, name, &value[..length], XattrFlags::empty())?;
    }
    rustix::fs::fchmod(&to, Mode::from_raw_mode(stat.st_mode))?;
    let time =
        |seconds, nanos: u64| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: i64::try_from(nanos).unwrap_or(0) };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    Ok(rustix::fs::futimens(&to, &times)?)
}

/// The number in a layer directory's name.
pub(crate) fn number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}
