//! Layers on disk: staged while they are unpacked, kept once they are whole and synced.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use sync::Mutex;

use crate::digest::Digest;
use crate::layer::confined_root::DiskUsage;
use crate::layer::unpack::Unpacked;
use crate::store::catalog::VERSION;
use crate::store::durable;

/// What the paths remembered of one layer may take: all layers of an image are remembered until the last is unpacked.
const BYTES_MAX: usize = 512 << 10;
/// Links to layers below that are remembered; an honest layer has a few, and each costs a search when it is made.
const LINKS_MAX: usize = 4096;
/// Registries that a layer remembers: one that is forgotten has to send the layer again.
const ORIGINS_MAX: usize = 32;

/// A layer's own record, `layer.json` beside its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    pub(crate) version: u32,
    pub(crate) chain_id: Digest,
    pub(crate) diff_id: Digest,
    pub(crate) parent: Option<Digest>,
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    /// Length of the tar stream it came as; records of the first release have none.
    #[serde(default)]
    pub(crate) tar_bytes: Option<u64>,
    /// Where all of it came from; none for an import.
    #[serde(default)]
    pub(crate) origins: Vec<Origin>,
}

/// A registry that has sent a layer whole, and the blob that it sent.
///
/// Only such a registry can say that a client may have the layer: any other could claim that it has the blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// As image names have it.
    pub(crate) registry: String,
    pub(crate) blob: Digest,
}

impl LayerRecord {
    /// Adds a registry; the oldest goes where there are too many.
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
    /// What its directory takes apart from its files.
    pub(crate) beside: DiskUsage,
}

impl Layer {
    pub(crate) fn disk_usage(&self) -> DiskUsage {
        let mut usage = DiskUsage { bytes: self.record.bytes, inodes: self.record.inodes };
        usage.add(self.beside);
        usage
    }
}

/// An unpacked layer that is not yet part of the store; dropped without being kept, it is removed.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) number: u64,
    pub(crate) directory: PathBuf,
    pub(crate) record: LayerRecord,
    pub(crate) pending: Pending,
    /// Whether it fits the layers below; locked while that is seen to, and while it moves into the store.
    pub(crate) adopted: Mutex<bool>,
    kept: AtomicBool,
}

/// What unpacking leaves to be done once the layers below are there. Paths are without symbolic links on the way.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Directories that the layer implies but does not list.
    pub(crate) implied: BTreeSet<PathBuf>,
    /// Hard links to files of layers below, and their targets; an empty file stands in for each.
    pub(crate) links: BTreeMap<PathBuf, PathBuf>,
    /// Bytes of all paths in here.
    bytes: usize,
}

impl Pending {
    /// Remembers a directory that is not listed; false: there is no room for it.
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

    /// A directory is listed after all.
    pub(crate) fn listed(&mut self, path: &Path) {
        if self.implied.remove(path) {
            self.bytes = self.bytes.saturating_sub(usage(path));
        }
    }

    /// Remembers a link to a layer below; false: there is no room for it.
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

    /// Forgets about `path` and all below it, which has been removed.
    pub(crate) fn forget(&mut self, path: &Path) {
        // An order by component has them side by side.
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

    /// From now on the directory is the store's: dropping this does not remove it.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Acquire)
            && let Err(error) = durable::remove_tree(&self.directory)
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "a half-unpacked layer stays until restart");
        }
    }
}

fn usage(path: &Path) -> usize {
    path.as_os_str().len()
}

/// The number in a layer directory's name.
pub(crate) fn number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}
