//! Disk usage of the store, from recorded sizes of layers.

use std::path::PathBuf;

use crate::layer::confined_root::DiskUsage;
use crate::store::catalog::Catalog;
use crate::store::durable;
use crate::store::load::beside;

/// Disk usage of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The store's directory.
    pub path: PathBuf,
    /// Bytes on disk.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

impl Catalog {
    /// Returns the disk usage of the store as `du` would report it: each layer's recorded size,
    /// plus a few files.
    ///
    /// Layers that are still being unpacked and unnamed temporary files are not included.
    pub(crate) fn usage(&self) -> Usage {
        let own = [durable::disk_usage_of(&self.root)];
        let entries = ["", "images", "blobs"].map(|name| durable::disk_usage_of_entries(&self.root.join(name), ""));
        let mut usage = DiskUsage::default();
        // Entries that cannot be read count as 0.
        own.into_iter().chain(entries).flatten().for_each(|part| usage.add(part));
        let mut waiting = Vec::new();
        let state = self.state();
        state.layers.values().for_each(|layer| usage.add(layer.disk_usage()));
        let staged = state.staged.iter().filter_map(|(staged, _)| staged.upgrade());
        // A layer that was just kept is counted among the layers.
        for staged in staged.filter(|staged| state.layers.values().all(|layer| layer.number != staged.number)) {
            usage.add(DiskUsage { bytes: staged.record.bytes, inodes: staged.record.inodes });
            waiting.push(staged);
        }
        drop(state);
        for staged in waiting {
            usage.add(beside(&staged.directory).unwrap_or_default());
        }
        Usage { path: self.root.clone(), bytes: usage.bytes, inodes: usage.inodes }
    }
}
