//! Adds layers and images to the store and removes images, so that a crash leaves the old or the
//! new state.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use safe_fs::FileError;

use crate::digest::Digest;
use crate::layer::staged_layer::{Layer, Origin, Staged};
use crate::layer::unpack::{Blob, UnpackError, unpack, verify, verify_diff_id};
use crate::limits::Limits;
use crate::record::Image;
use crate::store::catalog::{Catalog, ImageRecord, VERSION};
use crate::store::durable;
use crate::store::load::beside;
use crate::store::prune::Removed;

/// A layer in the store, or one that is unpacked and will be added.
#[derive(Debug, Clone)]
pub(crate) enum ReadyLayer {
    Kept,
    /// With the value of `losses` when unpacking began.
    Staged(Arc<Staged>, u64),
}

/// A layer to unpack.
#[derive(Debug, Clone)]
pub(crate) struct LayerPlan {
    pub(crate) chain_id: Digest,
    pub(crate) diff_id: Digest,
    /// Chain id of the layer below.
    pub(crate) parent: Option<Digest>,
    /// `None` for layers of docker archives.
    pub(crate) blob: Option<Blob>,
    /// The registry that the blob comes from, as in image names; `None` for an import.
    pub(crate) registry: Option<String>,
}

impl LayerPlan {
    /// Returns the registry and blob that the layer comes from; `None` for an import.
    pub(crate) fn origin(&self) -> Option<Origin> {
        let (registry, blob) = (self.registry.clone()?, self.blob.as_ref()?.digest.clone());
        Some(Origin { registry, blob })
    }
}

/// An image to add, whose layers are ready.
#[derive(Debug)]
pub(crate) struct NewImage {
    pub(crate) id: Digest,
    pub(crate) config_json: Vec<u8>,
    /// `user[:group]` of the config.
    pub(crate) user: String,
    /// Digest and content of the manifest, if there is one.
    pub(crate) manifest: Option<(Digest, Vec<u8>)>,
    /// Chain ids, lowest first.
    pub(crate) chain: Vec<Digest>,
    pub(crate) tags: Vec<String>,
    pub(crate) digests: Vec<String>,
}

impl Catalog {
    /// Receives a layer from an archive: unpacks it, or only verifies it if it is in the store. The author
    /// of an archive may know the digests of a layer without having its content.
    pub(crate) fn receive_import(
        &self,
        plan: &LayerPlan,
        source: impl Read,
        limits: &Limits,
    ) -> Result<ReadyLayer, UnpackError> {
        let Some(ready) = self.ready(&plan.chain_id) else { return self.stage(plan, source, limits) };
        match &plan.blob {
            Some(blob) => verify(source, blob, &plan.diff_id, limits)?,
            None => verify_diff_id(source, &plan.diff_id, limits)?,
        }
        Ok(ready)
    }

    /// Returns a layer that is kept or staged, whatever its origin.
    pub(crate) fn ready(&self, chain_id: &Digest) -> Option<ReadyLayer> {
        self.ready_where(chain_id, |_| true)
    }

    /// Returns a layer that is kept or staged and came from `origin`.
    pub(crate) fn ready_from(&self, chain_id: &Digest, origin: &Origin) -> Option<ReadyLayer> {
        self.ready_where(chain_id, |origins| origins.contains(origin))
    }

    fn ready_where(&self, chain_id: &Digest, suits: impl Fn(&[Origin]) -> bool) -> Option<ReadyLayer> {
        let state = self.state();
        if let Some(layer) = state.layers.get(chain_id) {
            return suits(&layer.record.origins).then_some(ReadyLayer::Kept);
        }
        let now = self.losses.load(Ordering::Acquire);
        let staged = state.staged.iter().filter(|(_, losses)| *losses == now);
        let mut staged = staged.filter_map(|(staged, losses)| Some((staged.upgrade()?, *losses)));
        let found = staged.find(|(staged, _)| staged.record.chain_id == *chain_id && suits(&staged.record.origins));
        found.map(|(staged, losses)| ReadyLayer::Staged(staged, losses))
    }

    /// Receives a layer from the registry: unpacks it, or only verifies it if it is in the store.
    pub(crate) fn receive(
        &self,
        plan: &LayerPlan,
        source: impl Read,
        limits: &Limits,
    ) -> Result<ReadyLayer, UnpackError> {
        let kept = self.state().layers.contains_key(&plan.chain_id);
        match (plan.origin(), &plan.blob) {
            (Some(origin), Some(blob)) if kept => {
                verify(source, blob, &plan.diff_id, limits)?;
                let _change = self.change.lock();
                self.add_origins(&plan.chain_id, &[origin]);
                Ok(ReadyLayer::Kept)
            }
            _ => self.stage(plan, source, limits),
        }
    }

    /// Unpacks a layer beside the store. The caller holds the lock of this layer.
    pub(crate) fn stage(
        &self,
        plan: &LayerPlan,
        source: impl Read,
        limits: &Limits,
    ) -> Result<ReadyLayer, UnpackError> {
        let losses = self.losses.load(Ordering::Acquire);
        let number = self.fresh_number();
        let directory = self.root.join("tmp").join(number.to_string());
        let LayerPlan { chain_id, diff_id, parent, blob, registry: _ } = plan;
        let mut staged = Staged::new(number, directory.clone(), chain_id.clone(), diff_id.clone(), parent.clone());
        staged.record.origins.extend(plan.origin());
        for (path, mode) in [(&directory, 0o700), (&staged.files(), 0o755)] {
            let failed = |source| UnpackError::Directory { doing: "creating", path: path.clone(), source };
            durable::make_directory(path, mode).map_err(failed)?;
        }
        durable::crash_point(&self.root, "layer begun");
        let unpacked = unpack(source, blob.as_ref(), diff_id, &directory, limits)?;
        staged.unpacked(unpacked);
        durable::crash_point(&self.root, "layer unpacked");
        let staged = Arc::new(staged);
        let mut state = self.state();
        state.staged.retain(|(staged, _)| staged.strong_count() > 0);
        state.staged.push((Arc::downgrade(&staged), losses));
        Ok(ReadyLayer::Staged(staged, losses))
    }

    /// Adds an image and its layers to the store, complete and durable. The caller has pinned its
    /// chain.
    pub(crate) fn add(&self, new: NewImage, layers: &[ReadyLayer]) -> Result<Arc<Image>, FileError> {
        let staged = layers.iter().filter_map(|ready| match ready {
            ReadyLayer::Staged(staged, losses) => Some((staged, *losses)),
            ReadyLayer::Kept => None,
        });
        let mut staged: Vec<(&Arc<Staged>, u64)> = staged.collect();
        // Lowest first: metadata that a layer copies from the layers below must be final there.
        staged.sort_by_key(|(staged, _)| new.chain.iter().position(|chain_id| *chain_id == staged.record.chain_id));
        // The image determines how long this takes, so it runs without the change lock.
        self.link_all_across_layers(&new.chain, &staged)?;
        let _change = self.change.lock();
        let known = self.state().images.contains_key(&new.id);
        // A layer that another pull has kept in the meantime only needs the new origin.
        let is_kept = |staged: &Staged| self.state().layers.contains_key(&staged.record.chain_id);
        for (known, _) in staged.extract_if(.., |(staged, _)| is_kept(staged)) {
            self.add_origins(&known.record.chain_id, &known.record.origins);
        }
        let (fresh, losses): (Vec<&Arc<Staged>>, Vec<u64>) = staged.into_iter().unzip();
        if losses.iter().any(|then| *then != self.losses.load(Ordering::Acquire)) {
            let replaced = std::io::Error::other("the disk lost writes while layers were unpacked");
            return Err(safe_fs::at("syncing", &self.root)(replaced));
        }
        let (id, manifest) = (new.id.clone(), new.manifest.as_ref().map(|(digest, _)| digest.clone()));
        let added = self.add_changing(new, &fresh, known);
        if added.is_err() && !self.state().images.contains_key(&id) {
            let blobs = manifest.iter().chain([&id]).map(|digest| self.blob_path(digest));
            for path in [self.image_path(&id)].into_iter().chain(blobs) {
                // Unreferenced now. The record is removed first; the rest is removed at the next
                // start if this fails.
                std::fs::remove_file(path).ok();
            }
        }
        added
    }

    /// Completes staged layers, lowest first. Another pull may do the same with the same layers at
    /// the same time.
    fn link_all_across_layers(&self, chain: &[Digest], all: &[(&Arc<Staged>, u64)]) -> Result<(), FileError> {
        for (staged, _) in all {
            let mut adopted = staged.adopted.lock();
            if *adopted {
                continue;
            }
            let mut below = self.below(chain, &staged.record.chain_id, all);
            while let Err(error) = staged.link_across_layers(&below) {
                let then = std::mem::replace(&mut below, self.below(chain, &staged.record.chain_id, all));
                // If a layer below was moved in the meantime, repeat; the operation is idempotent.
                if then == below {
                    let kind = durable::io_kind(&error);
                    return Err(FileError::new("preparing", &staged.directory, error).with_kind(kind));
                }
            }
            let record = serde_json::to_vec(&staged.record)
                .map_err(|error| safe_fs::at("encoding the record of", &staged.directory)(error.into()))?;
            let path = staged.directory.join("layer.json");
            std::fs::write(&path, record).map_err(safe_fs::at("writing", &path))?;
            durable::crash_point(&self.root, "layer record written");
            *adopted = true;
        }
        Ok(())
    }

    fn add_changing(&self, new: NewImage, fresh: &[&Arc<Staged>], known: bool) -> Result<Arc<Image>, FileError> {
        if !known {
            let manifest = new.manifest.iter().map(|(digest, json)| (digest, json));
            for (digest, json) in manifest.chain([(&new.id, &new.config_json)]) {
                let path = self.blob_path(digest);
                std::fs::write(&path, json).map_err(safe_fs::at("writing", &path))?;
                durable::crash_point(&self.root, "blob written");
            }
        }
        if !known || !fresh.is_empty() {
            self.sync_all()?;
            durable::crash_point(&self.root, "all synced");
        }
        self.keep(fresh)?;
        if let Some(lost) = new.chain.iter().find(|chain_id| !self.state().layers.contains_key(chain_id)) {
            let gone = std::io::Error::other("layer directory was removed while the image was added");
            return Err(safe_fs::at("finding the files of", Path::new(lost.as_str()))(gone));
        }
        self.record(new)
    }

    /// Records that a registry has sent a layer in the store. If this fails, the registry must send
    /// it again.
    fn add_origins(&self, chain_id: &Digest, origins: &[Origin]) {
        let layer = self.state().layers.get(chain_id).cloned();
        let Some(mut layer) = layer.map(|layer| Layer::clone(&layer)) else { return };
        let new: Vec<Origin> = origins.iter().filter(|new| !layer.record.origins.contains(new)).cloned().collect();
        if new.is_empty() {
            return;
        }
        new.into_iter().for_each(|origin| layer.record.add_origin(origin));
        let path = self.layers_dir().join(layer.number.to_string()).join("layer.json");
        match durable::write_json(&path, &layer.record) {
            Ok(()) => drop(self.state().layers.insert(chain_id.clone(), Arc::new(layer))),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot record from which registry a layer came; later pulls may download it again"
                );
            }
        }
    }

    /// One sync of the whole filesystem is much faster than one per file.
    fn sync_all(&self) -> Result<(), FileError> {
        rustix::fs::syncfs(&self.disk).map_err(|errno| {
            self.losses.fetch_add(1, Ordering::AcqRel);
            safe_fs::at("syncing", &self.root)(errno.into())
        })
    }

    fn keep(&self, fresh: &[&Arc<Staged>]) -> Result<(), FileError> {
        for staged in fresh {
            let to = self.layers_dir().join(staged.number.to_string());
            // A concurrent lookup finds it at the old or at the new path. It is complete, so the
            // lock is held only briefly.
            let adopted = staged.adopted.lock();
            std::fs::rename(&staged.directory, &to).map_err(safe_fs::at("moving into place", &to))?;
            staged.keep();
            durable::crash_point(&self.root, "layer in place");
            let beside = beside(&to).unwrap_or_default();
            let layer = Layer { number: staged.number, record: staged.record.clone(), beside };
            self.state().layers.insert(layer.record.chain_id.clone(), Arc::new(layer));
            drop(adopted);
        }
        if fresh.is_empty() { Ok(()) } else { safe_fs::sync_dir(&self.layers_dir()) }
    }

    /// Returns the directories of the layers below `chain_id`, nearest first; the staged ones are
    /// complete.
    fn below(&self, chain: &[Digest], chain_id: &Digest, all: &[(&Arc<Staged>, u64)]) -> Vec<PathBuf> {
        let place = |below: &Digest| {
            let staged = all.iter().find(|(staged, _)| staged.record.chain_id == *below).map(|(staged, _)| *staged);
            let _still = staged.map(|staged| staged.adopted.lock());
            match self.state().layers.get(below) {
                Some(layer) => Some(self.layers_dir().join(layer.number.to_string()).join("fs")),
                None => staged.map(|staged| staged.files()),
            }
        };
        let mut below: Vec<PathBuf> = chain.iter().take_while(|below| *below != chain_id).filter_map(place).collect();
        below.reverse();
        below
    }

    fn next_generation(&self) -> u64 {
        let mut state = self.state();
        state.generation += 1;
        state.generation
    }

    fn record(&self, new: NewImage) -> Result<Arc<Image>, FileError> {
        let state = self.state();
        let image = match state.images.get(&new.id) {
            Some(known) => {
                let mut image = Image::clone(known);
                image.add_names(&new.tags, &new.digests);
                image
            }
            None => {
                let bytes = new.chain.iter().filter_map(|layer| state.layers.get(layer));
                let mut image = Image {
                    id: new.id,
                    repo_tags: Vec::new(),
                    repo_digests: Vec::new(),
                    manifest: new.manifest.map(|(digest, _)| digest),
                    size: bytes.map(|layer| layer.record.bytes).sum(),
                    user: new.user,
                    chain: new.chain,
                };
                image.add_names(&new.tags, &new.digests);
                image
            }
        };
        drop(state);
        self.publish(image)
    }

    /// Writes an image's record, then makes it visible; an image that loses a tag is written after
    /// it.
    fn publish(&self, image: Image) -> Result<Arc<Image>, FileError> {
        let (image, generation) = (Arc::new(image), self.next_generation());
        let write = |image: &Image, generation| {
            let record = ImageRecord { version: VERSION, generation, image: image.clone() };
            durable::write_json(&self.image_path(&image.id), &record)
        };
        write(&image, generation)?;
        let robbed = self.state().insert(image.clone());
        for other in robbed {
            // The newer record owns the tag in any case, so this write may fail.
            if let Err(error) = write(&other, generation.saturating_sub(1)) {
                tracing::warn!(
                    old_image = %other.id,
                    error = &error as &dyn std::error::Error,
                    "cannot record that an image lost a tag to another; the tag may return to it when the other is removed"
                );
            }
            durable::crash_point(&self.root, "tag taken from the other");
        }
        Ok(image)
    }

    /// Adds names to an image in the store whose layers all have their files; returns `None` if
    /// there is none.
    pub(crate) fn name(
        &self,
        id: &Digest,
        tags: &[String],
        digests: &[String],
    ) -> Result<Option<Arc<Image>>, FileError> {
        let chain = self.state().images.get(id).map(|image| image.chain.clone());
        self.forget_lost(&chain.unwrap_or_default())?;
        let _change = self.change.lock();
        let known = self.state().images.get(id).cloned();
        let Some(known) = known else { return Ok(None) };
        if known.has_names(tags, digests) {
            return Ok(Some(known));
        }
        let mut image = Image::clone(&known);
        image.add_names(tags, digests);
        self.publish(image).map(Some)
    }

    /// Removes an image by id or with `all_tags`, otherwise one of its names; with the last tag the
    /// image is removed.
    pub(crate) fn remove(&self, text: &str, search: &[String], all_tags: bool) -> Result<Option<Removed>, FileError> {
        let removed = self.forget(text, search, all_tags)?;
        self.free()?;
        Ok(removed)
    }

    fn forget(&self, text: &str, search: &[String], all_tags: bool) -> Result<Option<Removed>, FileError> {
        let _change = self.change.lock();
        let found = self.state().find(text, search).map(|(image, name)| (image.clone(), name));
        let Some((image, name)) = found else { return Ok(None) };
        if let Some(name) = name.filter(|_| !all_tags) {
            let mut rest = Image::clone(&image);
            rest.repo_tags.retain(|tag| *tag != name);
            rest.repo_digests.retain(|digest| *digest != name);
            let was_tag = rest.repo_tags.len() < image.repo_tags.len();
            let gone = rest.repo_tags.is_empty() && (was_tag || rest.repo_digests.is_empty());
            if !gone {
                self.publish(rest)?;
                self.state().names.remove(&name);
                return Ok(Some(Removed { id: image.id.clone(), untagged: vec![name], image: false }));
            }
        }
        self.drop_image(&image)?;
        Ok(Some(Removed { id: image.id.clone(), untagged: image.repo_tags.clone(), image: true }))
    }

    /// Removes an image from the store; its layers are freed later. The caller holds the change
    /// lock.
    pub(crate) fn drop_image(&self, image: &Image) -> Result<(), FileError> {
        safe_fs::remove_file(&self.image_path(&image.id))?;
        durable::crash_point(&self.root, "image record removed");
        safe_fs::sync_dir(&self.root.join("images"))?;
        self.state().take(&image.id);
        for digest in image.manifest.iter().chain([&image.id]) {
            safe_fs::remove_file(&self.blob_path(digest))?;
            durable::crash_point(&self.root, "blob removed");
        }
        Ok(())
    }
}
