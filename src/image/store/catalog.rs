//! The store on disk: its images and layers, and their users.
//!
//! ```text
//! ROOT/lock            locked by the process that owns the store
//!      images/HEX.json one record per image, by config digest
//!      blobs/HEX       manifests and configs, as received
//!      layers/N/fs     a layer's files;  layers/N/layer.json its record
//!      layers/N/tar-split.zst  its tar stream without file contents
//!      layers/N/replaced/      content that a later entry of the same stream replaced
//!      tmp/            work in progress and removed layers: emptied at every start
//!      view/           mount point of an overlay, in the mount namespace of a separate thread
//! ```
//! A layer enters `layers/` by rename after one sync of the filesystem, an image record after that;
//! removal is in reverse order, and a layer's directory is renamed to `tmp/`. Reference counts are
//! never stored: they are computed from the records and the holds. After a crash, every entry is
//! either complete, or unreferenced and swept.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, MutexGuard, Weak};

use safe_fs::FileError;
use safe_fs::process_lock::{self, ProcessLock};
use serde::{Deserialize, Serialize};
use sync::Mutex;

use crate::digest::Digest;
use crate::layer::staged_layer::{Layer, Staged};
use crate::record::Image;
use crate::reference::Reference;
use crate::store::durable;
use crate::store::load::{clear, load_images, load_layers};

/// The format of records this version reads and writes.
pub(crate) const VERSION: u32 = 2;
/// The shortest prefix of an id that identifies an image, as in CRI-O.
const ID_PREFIX_MIN: usize = 3;
/// The shortest prefix after `sha256:`; fewer digits may be the tag of an image named sha256.
const QUALIFIED_ID_PREFIX_MIN: usize = 12;

/// A store that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("image store {} is in use by another process: stop it, or set another root directory", .0.display())]
    InUse(PathBuf),
    /// The store was written by another version of crisp.
    #[error(
        "image store file {} has format {found}, this crisp reads format {VERSION} only: remove the image store, or use the release that wrote it", path.display()
    )]
    Version {
        /// The record.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// An operation on a file or directory of the store failed.
    #[error(transparent)]
    Disk(#[from] FileError),
}

impl model::ErrorClass for OpenError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::InUse(_) => model::ErrorKind::Busy,
            Self::Version { .. } => model::ErrorKind::Precondition,
            Self::Disk(source) => source.kind(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    pub(crate) version: u32,
    /// Incremented with every record written: if two have the same tag, the later one owns it.
    pub(crate) generation: u64,
    pub(crate) image: Image,
}

#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) root: PathBuf,
    pub(crate) state: Mutex<State>,
    /// Locked while an image is added or removed.
    pub(crate) change: Mutex<()>,
    /// The root directory, open from the start: the kernel reports lost writes only to descriptors
    /// opened before.
    pub(crate) disk: File,
    /// Number of times the kernel reported lost writes. Layers unpacked at such a time are not
    /// trusted.
    pub(crate) losses: AtomicU64,
    /// Keeps the lock file locked.
    _lock: ProcessLock,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) images: BTreeMap<Digest, Arc<Image>>,
    /// Tags and digest references to image ids.
    pub(crate) names: HashMap<String, Digest>,
    pub(crate) layers: HashMap<Digest, Arc<Layer>>,
    /// Layers that are unpacked, with the value of `losses` at that start; several per chain id if
    /// the registries differ.
    pub(crate) staged: Vec<(Weak<Staged>, u64)>,
    pub(super) holds: HashMap<String, BTreeSet<Digest>>,
    /// Layers that pulls and imports in progress need.
    pub(super) pins: HashMap<Digest, usize>,
    pub(crate) next_number: u64,
    pub(crate) generation: u64,
    /// Before the first sweep the holds are unknown, so nothing is freed.
    pub(super) swept: bool,
}

impl Catalog {
    /// Opens or creates the store at `root` and removes the leftovers of a crash.
    pub(crate) fn open(root: &Path) -> Result<Self, OpenError> {
        durable::private_directory(root)?;
        let root = std::fs::canonicalize(root).map_err(safe_fs::at("resolving", root))?;
        let lock_path = root.join("lock");
        let lock = match process_lock::lock(&lock_path) {
            Ok(lock) => lock,
            Err(held) if held.kind() == io::ErrorKind::WouldBlock => return Err(OpenError::InUse(root)),
            Err(error) => return Err(safe_fs::at("locking", &lock_path)(error).into()),
        };
        for name in ["tmp", "images", "blobs", "layers", "view"] {
            durable::private_directory(&root.join(name))?;
        }
        let disk = File::open(&root).map_err(safe_fs::at("opening", &root))?;
        let mut state = State::default();
        clear(&root.join("tmp"), &mut state)?;
        load_layers(&root.join("layers"), &mut state)?;
        load_images(&root, &mut state)?;
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

    /// Returns a number that no layer has had since the store was opened.
    pub(crate) fn fresh_number(&self) -> u64 {
        let mut state = self.state();
        state.next_number += 1;
        state.next_number
    }
}

impl State {
    /// Returns the image with this full name.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Image>> {
        self.images.get(self.names.get(name)?)
    }

    /// Finds the image that `text` identifies by id, name or id prefix, with the full name by which
    /// it was found.
    ///
    /// `search` are the registries for a name without one.
    pub(crate) fn find(&self, text: &str, search: &[String]) -> Option<(&Arc<Image>, Option<String>)> {
        if let Ok(id) = text.parse::<Digest>() {
            return self.images.get(&id).map(|image| (image, None));
        }
        let names = Reference::candidates(text, search).unwrap_or_default();
        let mut named = names.iter().map(ToString::to_string).filter_map(|name| Some((self.named(&name)?, Some(name))));
        named.next().or_else(|| self.beginning_with(text).map(|image| (image, None)))
    }

    /// Returns the only image whose id begins with `text`.
    fn beginning_with(&self, text: &str) -> Option<&Arc<Image>> {
        let mut matching = self.all_beginning_with(text);
        matching.next().filter(|_| matching.next().is_none())
    }

    /// Returns the images whose ids begin with `text`.
    pub(crate) fn all_beginning_with(&self, text: &str) -> impl Iterator<Item = &Arc<Image>> {
        let (prefix, least) = match text.strip_prefix("sha256:") {
            Some(digits) => (digits, QUALIFIED_ID_PREFIX_MIN),
            None => (text, ID_PREFIX_MIN),
        };
        let is_prefix = prefix.len() >= least && prefix.bytes().all(|b| b.is_ascii_hexdigit());
        self.images.values().filter(move |image| is_prefix && image.id.hex().starts_with(prefix))
    }

    /// Adds an image and its names to the maps; other images that lose a tag are returned changed.
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

    /// Removes an image from the maps.
    pub(crate) fn take(&mut self, id: &Digest) {
        self.names.retain(|_, named| named != id);
        self.images.remove(id);
    }
}
