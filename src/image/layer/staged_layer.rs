//! Layers on disk: staged during unpacking, kept once they are complete and synced.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use sync::Mutex;

use crate::digest::Digest;
use crate::layer::confined_root::DiskUsage;
use crate::layer::unpack::Unpacked;
use crate::store::catalog::VERSION;

/// Limit for the recorded paths of one layer; those of all layers of an image are kept until the
/// last is unpacked.
const BYTES_MAX: usize = 512 << 10;
/// Limit for recorded links to layers below; real layers have a few, and each needs a lookup when
/// it is created.
const LINKS_MAX: usize = 4096;
/// Number of registries recorded per layer; a registry that is dropped must send the layer again.
const ORIGINS_MAX: usize = 32;

/// The record of a layer, `layer.json` beside its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    pub(crate) version: u32,
    pub(crate) chain_id: Digest,
    pub(crate) diff_id: Digest,
    pub(crate) parent: Option<Digest>,
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    /// Length of the original tar stream; missing in records of the first release.
    #[serde(default)]
    pub(crate) tar_bytes: Option<u64>,
    /// The registries that sent the whole layer; none for an import.
    #[serde(default)]
    pub(crate) origins: Vec<Origin>,
}

/// A registry that has sent the whole layer, and the blob it sent.
///
/// Only such a registry can grant a client access to the layer: any other could falsely claim to
/// have the blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// As in image names.
    pub(crate) registry: String,
    pub(crate) blob: Digest,
}

impl LayerRecord {
    /// Adds a registry; the oldest is dropped if there are too many.
    pub(crate) fn add_origin(&mut self, origin: Origin) {
        if self.origins.len() >= ORIGINS_MAX {
            self.origins.remove(0);
        }
        self.origins.push(origin);
    }
}

/// A layer that images and containers can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layer {
    /// Its directory under `layers/`.
    pub(crate) number: u64,
    pub(crate) record: LayerRecord,
    /// Disk space of its directory except its files.
    pub(crate) beside: DiskUsage,
}

impl Layer {
    pub(crate) fn disk_usage(&self) -> DiskUsage {
        let mut usage = DiskUsage { bytes: self.record.bytes, inodes: self.record.inodes };
        usage.add(self.beside);
        usage
    }
}

/// An unpacked layer that is not yet part of the store; removed on drop unless it is kept.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) number: u64,
    pub(crate) directory: PathBuf,
    pub(crate) record: LayerRecord,
    pub(crate) pending: Pending,
    /// Whether it was linked to the layers below; locked during that, and while it is moved into
    /// the store.
    pub(crate) adopted: Mutex<bool>,
    kept: AtomicBool,
}

/// Work that remains until the layers below are unpacked. Paths have no symbolic links.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Directories that the layer implies but does not list.
    pub(crate) implied: BTreeSet<PathBuf>,
    /// Hard links to files of layers below, and their targets; each has an empty file as a
    /// placeholder.
    pub(crate) links: BTreeMap<PathBuf, PathBuf>,
    /// Total length of all paths.
    bytes: usize,
}

impl Pending {
    /// Records a directory that is not listed; returns false if the limit is reached.
    pub(crate) fn add_implicit_dir(&mut self, path: PathBuf) -> bool {
        let more = usage(&path);
        if self.bytes.saturating_add(more) > BYTES_MAX {
            return false;
        }
        if self.implied.insert(path) {
            self.bytes += more;
        }
        true
    }

    /// Removes a directory that turns out to be listed.
    pub(crate) fn listed(&mut self, path: &Path) {
        if self.implied.remove(path) {
            self.bytes = self.bytes.saturating_sub(usage(path));
        }
    }

    /// Records a link to a layer below; returns false if the limit is reached.
    pub(crate) fn link(&mut self, path: PathBuf, target: PathBuf) -> bool {
        let more = usage(&path).saturating_add(usage(&target));
        if self.links.len() == LINKS_MAX || self.bytes.saturating_add(more) > BYTES_MAX {
            return false;
        }
        self.unlink(&path);
        self.links.insert(path, target);
        self.bytes += more;
        true
    }

    fn unlink(&mut self, path: &Path) {
        if let Some(target) = self.links.remove(path) {
            self.bytes = self.bytes.saturating_sub(usage(path).saturating_add(usage(&target)));
        }
    }

    /// Removes the records of `path` and all below it after their removal.
    pub(crate) fn forget(&mut self, path: &Path) {
        // Paths are ordered by component, so these are adjacent.
        let within = |below: &&PathBuf| below.starts_with(path);
        let implied: Vec<PathBuf> = self.implied.range(path.to_owned()..).take_while(within).cloned().collect();
        let links = self.links.range(path.to_owned()..).map(|(link, _)| link).take_while(within);
        let links: Vec<PathBuf> = links.cloned().collect();
        for path in implied {
            self.listed(&path);
        }
        for path in links {
            self.unlink(&path);
        }
    }
}

impl Staged {
    pub(crate) fn new(
        number: u64,
        directory: PathBuf,
        chain_id: Digest,
        diff_id: Digest,
        parent: Option<Digest>,
    ) -> Self {
        let (version, origins) = (VERSION, Vec::new());
        let record = LayerRecord { version, chain_id, diff_id, parent, bytes: 0, inodes: 0, tar_bytes: None, origins };
        let (adopted, kept) = (Mutex::new(false), AtomicBool::new(false));
        Self { number, directory, record, pending: Pending::default(), adopted, kept }
    }

    pub(crate) fn files(&self) -> PathBuf {
        self.directory.join("fs")
    }

    pub(crate) fn unpacked(&mut self, unpacked: Unpacked) {
        self.pending = unpacked.pending;
        self.record.bytes = unpacked.usage.bytes;
        self.record.inodes = unpacked.usage.inodes;
        self.record.tar_bytes = Some(unpacked.tar_bytes);
    }

    /// Hands the directory over to the store: dropping this does not remove it.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Acquire)
            && let Err(error) = safe_fs::remove_dir(&self.directory)
        {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot remove a partly unpacked image layer; the next start of the daemon removes it"
            );
        }
    }
}

fn usage(path: &Path) -> usize {
    path.as_os_str().len()
}

/// Returns the number in the name of a layer directory.
pub(crate) fn number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}
