//! Removes images by name, and unused ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use safe_fs::FileError;

use crate::digest::Digest;
use crate::record::Image;
use crate::store::catalog::{Catalog, State};
use crate::store::{AmbiguousImageId, Store};

/// The names that an image lost, or the image that was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The image.
    pub id: Digest,
    /// Tags, or one digest reference, that no longer name it.
    pub untagged: Vec<String>,
    /// Whether the image was removed, too.
    pub image: bool,
}

/// An image that could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The name is the prefix of several ids.
    #[error(transparent)]
    Ambiguous(#[from] AmbiguousImageId),
    /// The store failed.
    #[error(transparent)]
    Disk(#[from] FileError),
}

impl model::ErrorClass for RemoveError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Ambiguous(source) => source.kind(),
            Self::Disk(source) => source.kind(),
        }
    }
}

/// The images that were removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The images, by id.
    pub images: Vec<Arc<Image>>,
    /// Disk space of their layers that nothing else uses.
    pub bytes: u64,
}

/// A prune that failed.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// Before the first sweep the holds of containers are unknown.
    #[error("cannot prune images: the images in use are not known yet, try again after the daemon's start is complete")]
    Unknown,
    /// The store failed.
    #[error(transparent)]
    Disk(#[from] FileError),
}

impl model::ErrorClass for PruneError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Unknown => model::ErrorKind::Precondition,
            Self::Disk(source) => source.kind(),
        }
    }
}

impl Store {
    /// Removes one name of an image, and the image with its last tag; an image named by id or with
    /// `all_tags` is removed with all its names. Returns `None` if there is none. Blocks.
    pub fn remove_named(&self, text: &str, all_tags: bool) -> Result<Option<Removed>, RemoveError> {
        if self.lookup(text)?.is_none() {
            return Ok(None);
        }
        let removed = self.catalog.remove(text, &self.search(), all_tags)?;
        for gone in removed.iter().filter(|removed| removed.image) {
            self.forget_accounts(&gone.id);
        }
        Ok(removed)
    }

    /// Removes images that no container, pull or import uses and for which `keep` returns false.
    ///
    /// Fails before [`Store::remove_unused`]. Blocks.
    pub fn prune(&self, keep: impl Fn(&Image) -> bool) -> Result<Pruned, PruneError> {
        let pruned = self.catalog.prune(keep)?;
        for image in &pruned.images {
            self.forget_accounts(&image.id);
        }
        Ok(pruned)
    }

    /// Returns what [`Store::prune`] would remove now.
    pub fn prunable(&self, keep: impl Fn(&Image) -> bool) -> Result<Pruned, PruneError> {
        let state = self.catalog.state();
        let images = state.prunable(keep)?;
        let gone: BTreeSet<&Digest> = images.iter().map(|image| &image.id).collect();
        let stay = state.images.values().filter(|image| !gone.contains(&image.id));
        let needed: BTreeSet<&Digest> = stay.flat_map(|image| &image.chain).chain(state.held_layers()).collect();
        let freed: BTreeSet<&Digest> =
            images.iter().flat_map(|image| &image.chain).filter(|chain_id| !needed.contains(chain_id)).collect();
        let bytes =
            freed.iter().filter_map(|chain_id| state.layers.get(*chain_id)).map(|layer| layer.disk_usage().bytes);
        let bytes = bytes.sum();
        Ok(Pruned { images, bytes })
    }
}

impl Catalog {
    fn prune(&self, keep: impl Fn(&Image) -> bool) -> Result<Pruned, PruneError> {
        let mut pruned = Pruned::default();
        let change = self.change.lock();
        // Check again for each image: a container may use it by now.
        let unused = self.state().prunable(keep)?;
        for image in unused {
            if !self.state().in_use(&image) {
                self.drop_image(&image)?;
                pruned.images.push(image);
            }
        }
        drop(change);
        pruned.bytes = self.free()?.bytes;
        Ok(pruned)
    }
}

impl State {
    fn prunable(&self, keep: impl Fn(&Image) -> bool) -> Result<Vec<Arc<Image>>, PruneError> {
        if !self.holds_are_known() {
            return Err(PruneError::Unknown);
        }
        let unused = self.images.values().filter(|image| !self.in_use(image) && !keep(image));
        Ok(unused.cloned().collect())
    }
}
