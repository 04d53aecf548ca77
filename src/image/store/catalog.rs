//! The store on disk: which images and layers there are, and who uses them.
//!
//! ```text
//! ROOT/lock            held by the one process that owns the store
//!      images/HEX.json one record per image, by config digest
//!      blobs/HEX       manifests and configs, as they came
//!      layers/N/fs     a layer's files;  layers/N/layer.json its record
//!      layers/N/tar-split.zst what its tar stream had beside them;  layers/N/replaced/ content that the stream itself replaced
//!      tmp/            work in progress and trash: emptied at every start
//!      view/           where a thread of its own sees an overlay mounted
//! ```
//! A layer enters `layers/` by rename after one sync of the filesystem, an image record after that; it leaves in the
//! opposite order, and its directory by rename into `tmp/`. Reference counts are never stored: they follow from the
//! records and the holds. Whatever a crash leaves is then either whole, or nobody's and swept.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, MutexGuard, Weak};

use serde::{Deserialize, Serialize};
use sync::Mutex;

use crate::digest::Digest;
use crate::layer::confined_root::DiskUsage;
use crate::layer::staged_layer::{Layer, Staged};
use crate::record::Image;
use crate::reference::Reference;
use crate::store::durable;
use crate::store::durable::DiskError;
use crate::store::load::{clear, entries, load_images, load_layers, unreferenced_chain_id};

/// The format of records this version reads and writes.
pub(crate) const VERSION: u32 = 2;
/// Shorter hex prefixes of an id could be meant as a name.
const ID_PREFIX_MIN: usize = 12;

/// A store that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("image store {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// Written by another version of crisp.
    #[error(
        "{} has format {found}, this version reads format {VERSION} only: remove the image store, or use the version that \
         wrote it", path.display()
    )]
    Version {
        /// The record.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// A file or directory of the store failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl OpenError {
    /// The class of this error.
    pub fn kind(&self) -> model::ErrorKind {
        match self {
            Self::InUse(_) => model::ErrorKind::Busy,
            Self::Version { .. } => model::ErrorKind::Precondition,
            Self::Disk(source) => source.kind(),
        }
    }
}

/// Layers that cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The image is not here (any more).
    #[error("image {0} is not in the store")]
    NoSuchImage(Digest),
    /// The layer is not here.
    #[error("layer {0:?} is not in the store")]
    NoSuchLayer(String),
}

impl HoldError {
    /// The class of this error.
    pub fn kind(&self) -> model::ErrorKind {
        match self {
            Self::NoSuchImage(_) | Self::NoSuchLayer(_) => model::ErrorKind::NotFound,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    pub(crate) version: u32,
    /// Counts up with every record written: where two claim a tag, the later one has it.
    pub(crate) generation: u64,
    pub(crate) image: Image,
}

#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) root: PathBuf,
    pub(crate) state: Mutex<State>,
    /// Held while an image is being added or removed.
    pub(crate) change: Mutex<()>,
    /// The root directory, open from the start: the kernel tells of lost writes only who was there before.
    pub(crate) disk: File,
    /// How often the kernel said that writes were lost. What was being unpacked at that time cannot be trusted.
    pub(crate) losses: AtomicU64,
    /// Keeps the lock file locked.
    _lock: File,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) images: BTreeMap<Digest, Arc<Image>>,
    /// Tags and digest references to image ids.
    pub(crate) names: HashMap<String, Digest>,
    pub(crate) layers: HashMap<Digest, Arc<Layer>>,
    /// Layers that are unpacked, and the losses when that began.
    pub(crate) staged: HashMap<Digest, (Weak<Staged>, u64)>,
    holds: HashMap<String, BTreeSet<Digest>>,
    /// Layers that work in progress counts on.
    pins: HashMap<Digest, usize>,
    pub(crate) next_number: u64,
    pub(crate) generation: u64,
    /// Before the first sweep we do not know who holds what, so nothing is freed.
    swept: bool,
}

impl Catalog {
    /// Opens or makes the store at `root` and drops what a crash left half done.
    pub(crate) fn open(root: &Path) -> Result<Self, OpenError> {
        durable::private_directory(root)?;
        let root = std::fs::canonicalize(root).map_err(durable::at("resolving", root))?;
        let lock_path = root.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(durable::at("opening", &lock_path))?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(OpenError::InUse(root)),
            Err(errno) => return Err(durable::at("locking", &lock_path)(errno.into()).into()),
        }
        for name in ["tmp", "images", "blobs", "layers", "view"] {
            durable::private_directory(&root.join(name))?;
        }
        let disk = File::open(&root).map_err(durable::at("opening", &root))?;
        let mut state = State::default();
        clear(&root.join("tmp"), &mut state)?;
        load_layers(&root.join("layers"), &mut state)?;
        load_images(&root.join("images"), &mut state)?;
        Ok(Self {
            root,
            state: Mutex::new(state),
            change: Mutex::new(()),
            disk,
            losses: AtomicU64::new(0),
            _lock: lock,
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn layers_dir(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(crate) fn image_path(&self, id: &Digest) -> PathBuf {
        self.root.join("images").join(format!("{}.json", id.hex()))
    }

    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs").join(digest.hex())
    }

    /// A number no layer has had since the store was opened.
    pub(crate) fn fresh_number(&self) -> u64 {
        let mut state = self.state();
        state.next_number += 1;
        state.next_number
    }

    pub(crate) fn lowers(&self, image: &Image) -> Result<Vec<String>, HoldError> {
        self.state().lowers(image)
    }

    pub(crate) fn hold(&self, owner: &str, id: &Digest) -> Result<Vec<String>, HoldError> {
        let mut state = self.state();
        let image = state.images.get(id).cloned().ok_or_else(|| HoldError::NoSuchImage(id.clone()))?;
        let lowers = state.lowers(&image)?;
        state.holds.entry(owner.to_owned()).or_default().extend(image.chain.iter().cloned());
        Ok(lowers)
    }

    /// Holds all of `lowers` that are here, also when one is missing: the container may run on.
    pub(crate) fn hold_lowers(&self, owner: &str, lowers: &[String]) -> Result<(), HoldError> {
        let mut state = self.state();
        let mut missing = None;
        for lower in lowers {
            let number = lower.strip_suffix("/fs").and_then(|number| number.parse().ok());
            let found = state.layers.values().find(|layer| Some(layer.number) == number);
            match found.map(|layer| layer.record.chain_id.clone()) {
                Some(chain_id) => drop(state.holds.entry(owner.to_owned()).or_default().insert(chain_id)),
                None => missing = missing.or_else(|| Some(lower.clone())),
            }
        }
        missing.map_or(Ok(()), |lower| Err(HoldError::NoSuchLayer(lower)))
    }

    /// Drops a hold and frees what nobody uses any more.
    pub(crate) fn release(&self, owner: &str) -> Result<(), DiskError> {
        self.state().holds.remove(owner);
        self.free().map(drop)
    }

    /// Keeps layers from being freed while a pull or import counts on them.
    pub(crate) fn pin(self: &Arc<Self>, chain: Vec<Digest>) -> Pin {
        let mut state = self.state();
        for chain_id in &chain {
            *state.pins.entry(chain_id.clone()).or_default() += 1;
        }
        drop(state);
        Pin { catalog: self.clone(), chain }
    }

    /// From now on unused layers are freed; the ones unused already are freed at once, with stray blobs.
    pub(crate) fn remove_unused(&self) -> Result<(), DiskError> {
        self.state().swept = true;
        self.free()?;
        // No image may be added meanwhile: its blobs are there before its record.
        let _change = self.change.lock();
        let images: Vec<Arc<Image>> = self.state().images.values().cloned().collect();
        let digests = images.iter().flat_map(|image| image.manifest.iter().chain([&image.id]));
        let wanted: BTreeSet<&str> = digests.map(Digest::hex).collect();
        for path in entries(&self.root.join("blobs"))? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !wanted.contains(name) {
                durable::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Frees layers that no image, hold or pull uses, and says what they took.
    ///
    /// Each leaves `layers/` by rename first, so that none is ever there in part. One that cannot leave is kept on the
    /// books, and tried again with the next.
    pub(crate) fn free(&self) -> Result<DiskUsage, DiskError> {
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
                    outcome = outcome.and(Err(durable::at("moving away", &from)(error)));
                }
            }
        }
        outcome = outcome.and(durable::sync(&self.layers_dir()));
        for path in trash {
            outcome = outcome.and(durable::remove_tree(&path));
            durable::crash_point(&self.root, "layer removed");
        }
        outcome.map(|()| freed)
    }
}

impl State {
    /// The image that has this name, which is one in full.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Image>> {
        self.images.get(self.names.get(name)?)
    }

    /// The image that `text` means, by id, name or the beginning of an id, and in full the name that it was found by.
    ///
    /// `search` are the registries of a name that has none.
    pub(crate) fn find(&self, text: &str, search: &[String]) -> Option<(&Arc<Image>, Option<String>)> {
        if let Ok(id) = text.parse::<Digest>() {
            return self.images.get(&id).map(|image| (image, None));
        }
        let names = Reference::candidates(text, search).unwrap_or_default();
        let mut named = names.iter().map(ToString::to_string).filter_map(|name| Some((self.named(&name)?, Some(name))));
        named.next().or_else(|| self.beginning_with(text).map(|image| (image, None)))
    }

    /// The only image whose id begins with `text`.
    fn beginning_with(&self, text: &str) -> Option<&Arc<Image>> {
        let prefix = text.strip_prefix("sha256:").unwrap_or(text);
        if prefix.len() < ID_PREFIX_MIN || !prefix.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut matching = self.images.values().filter(|image| image.id.hex().starts_with(prefix));
        matching.next().filter(|_| matching.next().is_none())
    }

    fn lowers(&self, image: &Image) -> Result<Vec<String>, HoldError> {
        let name = |chain_id| match self.layers.get(chain_id) {
            Some(layer) => Ok(format!("{}/fs", layer.number)),
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

    /// Puts a layer that could not leave back on the books; a new one may have taken its name meanwhile.
    fn put_back(&mut self, layer: &Arc<Layer>) {
        let mut layer = Layer::clone(layer);
        if self.layers.contains_key(&layer.record.chain_id) {
            layer.record.chain_id = unreferenced_chain_id(layer.number);
        }
        self.layers.insert(layer.record.chain_id.clone(), Arc::new(layer));
    }

    /// Whether a container or work in progress counts on an image.
    pub(crate) fn in_use(&self, image: &Image) -> bool {
        let Some(top) = image.chain.last() else { return false };
        self.pins.contains_key(top) || self.holds.values().any(|held| held.contains(top))
    }

    /// Layers that containers or work in progress count on.
    pub(crate) fn held_layers(&self) -> impl Iterator<Item = &Digest> {
        self.holds.values().flatten().chain(self.pins.keys())
    }

    /// Whether it is known who uses what.
    pub(crate) fn holds_are_known(&self) -> bool {
        self.swept
    }

    /// Puts an image and its names into the maps; a tag it has leaves any other image, which is returned changed.
    pub(crate) fn insert(&mut self, image: Arc<Image>) -> Vec<Arc<Image>> {
        let mut robbed = Vec::new();
        for name in image.repo_tags.iter().chain(&image.repo_digests) {
            let before = self.names.insert(name.clone(), image.id.clone());
            if let Some(other) = before.filter(|id| *id != image.id).and_then(|id| self.images.get_mut(&id)) {
                let mut changed = Image::clone(other);
                changed.repo_tags.retain(|tag| tag != name);
                changed.repo_digests.retain(|digest| digest != name);
                *other = Arc::new(changed);
                robbed.push(other.clone());
            }
        }
        self.images.insert(image.id.clone(), image);
        robbed
    }

    /// Takes an image out of the maps.
    pub(crate) fn take(&mut self, id: &Digest) {
        self.names.retain(|_, named| named != id);
        self.images.remove(id);
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
            tracing::warn!(error = &error as &dyn std::error::Error, "unused layers stay until the next sweep");
        }
    }
}
