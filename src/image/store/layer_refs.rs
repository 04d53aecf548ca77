//! Layers in use: by images, by containers that hold them, and by pulls or imports in progress.
//! Frees the others.
//!
//! Reference counts are never stored: they are computed from the records and from the holds of
//! containers.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::LayerNumber;
use safe_fs::FileError;

use super::catalog::{Catalog, State};
use crate::digest::Digest;
use crate::layer::confined_root::DiskUsage;
use crate::layer::staged_layer::Layer;
use crate::record::Image;
use crate::store::durable;
use crate::store::load::{entries, unreferenced_chain_id};

/// Layers that cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The image is not in the store, or no longer.
    #[error("image {0} is not in the image store: pull it first")]
    NoSuchImage(Digest),
    /// The layer is not in the store.
    #[error("layer {0} is not in the image store: pull or import its image again")]
    NoSuchLayer(LayerNumber),
    /// Files of the image are missing on disk, so it was removed from the store.
    #[error("image {0} was removed because files of a layer are missing: pull or import it again")]
    LostLayer(Digest),
    /// The layers could not be checked.
    #[error(transparent)]
    Disk(#[from] FileError),
}

impl model::ErrorClass for HoldError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::NoSuchImage(_) | Self::NoSuchLayer(_) | Self::LostLayer(_) => model::ErrorKind::NotFound,
            Self::Disk(source) => source.kind(),
        }
    }
}

impl Catalog {
    pub(crate) fn lowers(&self, image: &Image) -> Result<Vec<LayerNumber>, HoldError> {
        let lowers = self.state().lowers(image)?;
        self.check_files(image)?;
        Ok(lowers)
    }

    /// Returns an error for an image with missing layer files, after removing its record.
    fn check_files(&self, image: &Image) -> Result<(), HoldError> {
        match self.forget_lost(&image.chain)? {
            true => Err(HoldError::LostLayer(image.id.clone())),
            false => Ok(()),
        }
    }

    pub(crate) fn hold(&self, owner: &str, id: &Digest) -> Result<Vec<LayerNumber>, HoldError> {
        let mut state = self.state();
        let image = state.images.get(id).cloned().ok_or_else(|| HoldError::NoSuchImage(id.clone()))?;
        let lowers = state.lowers(&image)?;
        state.holds.entry(owner.to_owned()).or_default().extend(image.chain.iter().cloned());
        drop(state);
        self.check_files(&image)?;
        Ok(lowers)
    }

    /// Holds all of `lowers` that exist, even if one is missing: the container may still be
    /// running.
    pub(crate) fn hold_lowers(&self, owner: &str, lowers: &[LayerNumber]) -> Result<(), HoldError> {
        let mut state = self.state();
        let mut missing = None;
        for lower in lowers {
            let found = state.layers.values().find(|layer| layer.number == lower.get());
            match found.map(|layer| layer.record.chain_id.clone()) {
                Some(chain_id) => drop(state.holds.entry(owner.to_owned()).or_default().insert(chain_id)),
                None => missing = missing.or(Some(*lower)),
            }
        }
        missing.map_or(Ok(()), |lower| Err(HoldError::NoSuchLayer(lower)))
    }

    /// Removes a hold and frees unused layers.
    pub(crate) fn release(&self, owner: &str) -> Result<(), FileError> {
        self.state().holds.remove(owner);
        self.free().map(drop)
    }

    /// Prevents layers from being freed while a pull or import needs them.
    pub(crate) fn pin(self: &Arc<Self>, chain: Vec<Digest>) -> Pin {
        let mut state = self.state();
        for chain_id in &chain {
            *state.pins.entry(chain_id.clone()).or_default() += 1;
        }
        drop(state);
        Pin { catalog: self.clone(), chain }
    }

    /// Enables freeing of unused layers, frees those that are unused now, and removes unreferenced
    /// blobs.
    pub(crate) fn remove_unused(&self) -> Result<(), FileError> {
        self.state().swept = true;
        self.free()?;
        // No image may be added during this: its blobs are written before its record.
        let _change = self.change.lock();
        let images: Vec<Arc<Image>> = self.state().images.values().cloned().collect();
        let digests = images.iter().flat_map(|image| image.manifest.iter().chain([&image.id]));
        let wanted: BTreeSet<&str> = digests.map(Digest::hex).collect();
        for path in entries(&self.root.join("blobs"))? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !wanted.contains(name) {
                safe_fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Frees layers that no image, hold or pull uses, and returns their disk usage.
    ///
    /// Each is first moved out of `layers/` by rename, so that `layers/` never has a partial one. A
    /// layer that cannot be moved is kept in the state, and tried again with the next call.
    pub(crate) fn free(&self) -> Result<DiskUsage, FileError> {
        let unused = {
            let mut state = self.state();
            if !state.swept {
                return Ok(DiskUsage::default());
            }
            state.take_unused()
        };
        if unused.is_empty() {
            return Ok(DiskUsage::default());
        }
        let (mut freed, mut trash, mut outcome) = (DiskUsage::default(), Vec::with_capacity(unused.len()), Ok(()));
        for layer in unused {
            let from = self.layers_dir().join(layer.number.to_string());
            let to = self.root.join("tmp").join(layer.number.to_string());
            match std::fs::rename(&from, &to) {
                Ok(()) => {
                    durable::crash_point(&self.root, "layer moved away");
                    freed.add(layer.disk_usage());
                    trash.push(to);
                }
                Err(error) => {
                    self.state().put_back(&layer);
                    outcome = outcome.and(Err(safe_fs::at("moving away", &from)(error)));
                }
            }
        }
        outcome = outcome.and(safe_fs::sync_dir(&self.layers_dir()));
        for path in trash {
            outcome = outcome.and(safe_fs::remove_dir(&path));
            durable::crash_point(&self.root, "layer removed");
        }
        outcome.map(|()| freed)
    }
}

impl State {
    fn lowers(&self, image: &Image) -> Result<Vec<LayerNumber>, HoldError> {
        let name = |chain_id| match self.layers.get(chain_id) {
            Some(layer) => Ok(LayerNumber::new(layer.number)),
            None => Err(HoldError::NoSuchImage(image.id.clone())),
        };
        image.chain.iter().rev().map(name).collect()
    }

    fn take_unused(&mut self) -> Vec<Arc<Layer>> {
        let of_images = self.images.values().flat_map(|image| &image.chain);
        let used: BTreeSet<&Digest> = of_images.chain(self.held_layers()).collect();
        let unused: Vec<Digest> = self.layers.keys().filter(|chain_id| !used.contains(chain_id)).cloned().collect();
        unused.iter().filter_map(|chain_id| self.layers.remove(chain_id)).collect()
    }

    /// Restores a layer that could not be moved; a new one may have the same chain id by now.
    fn put_back(&mut self, layer: &Arc<Layer>) {
        let mut layer = Layer::clone(layer);
        if self.layers.contains_key(&layer.record.chain_id) {
            layer.record.chain_id = unreferenced_chain_id(layer.number);
        }
        self.layers.insert(layer.record.chain_id.clone(), Arc::new(layer));
    }

    /// Returns whether a container, pull or import uses an image.
    pub(crate) fn in_use(&self, image: &Image) -> bool {
        let Some(top) = image.chain.last() else { return false };
        self.pins.contains_key(top) || self.holds.values().any(|held| held.contains(top))
    }

    /// Returns the layers that containers, pulls or imports use.
    pub(crate) fn held_layers(&self) -> impl Iterator<Item = &Digest> {
        self.holds.values().flatten().chain(self.pins.keys())
    }

    /// Returns whether all holds are known.
    pub(crate) fn holds_are_known(&self) -> bool {
        self.swept
    }
}

/// See [`Catalog::pin`].
#[derive(Debug)]
pub(crate) struct Pin {
    catalog: Arc<Catalog>,
    chain: Vec<Digest>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.catalog.state();
        for chain_id in &self.chain {
            if let Some(count) = state.pins.get_mut(chain_id) {
                *count -= 1;
                if *count == 0 {
                    state.pins.remove(chain_id);
                }
            }
        }
        drop(state);
        if let Err(error) = self.catalog.free() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot remove unused image layers; they stay on disk until the next removal of unused layers"
            );
        }
    }
}
