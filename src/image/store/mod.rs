//! The store's interface for the daemon.

pub(crate) mod catalog;
pub(crate) mod commit;
#[cfg(test)]
pub(crate) mod commit_tests;
#[cfg(test)]
pub(crate) mod crash_points;
#[cfg(test)]
pub(crate) mod crash_tests;
pub(crate) mod disk_usage;
pub(crate) mod durable;
#[cfg(test)]
pub(crate) mod full_tests;
pub(crate) mod layer_refs;
pub(crate) mod load;
pub(crate) mod lost_layers;
pub(crate) mod prune;
#[cfg(test)]
pub(crate) mod race_tests;
pub(crate) mod temp_file;
#[cfg(test)]
pub(crate) mod test_support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::LayerNumber;
use safe_fs::FileError;
use sync::{KeyedLock, Mutex, RwLock};

use crate::config::{Config, ConfigBlob};
use crate::digest::Digest;
use crate::limits::Limits;
use crate::manifest::ManifestError;
use crate::record::Image;
use crate::registry::endpoint::Registries;
use crate::registry::http::Http;
use crate::registry::progress::{PullCounters, PullTotals};
use crate::registry::transfer::places::Places;
use crate::rootfs::passwd::{Accounts, FILE_MAX};
use crate::rootfs::read_files::{RootfsError, read_files};
use crate::store::catalog::{Catalog, OpenError};
use crate::store::disk_usage::Usage;
use crate::store::layer_refs::HoldError;

/// Images whose accounts are kept in memory.
const CACHED_ACCOUNTS: usize = 128;
/// The size of account files above which they are read for each container.
const CACHED_ACCOUNTS_BYTES: usize = 16 << 10;

/// All images of this machine. Most calls use memory only; those that block document it.
#[derive(Debug)]
pub struct Store {
    pub(crate) catalog: Arc<Catalog>,
    terms: RwLock<PullLimits>,
    /// One pull per name, and one download per layer and registry, at a time, unless one makes
    /// almost no progress.
    pub(crate) pull_locks: Arc<KeyedLock>,
    pub(crate) counters: Arc<PullCounters>,
    /// The registry configuration and its clients.
    http: RwLock<Arc<Http>>,
    accounts: Mutex<HashMap<Digest, Arc<Accounts>>>,
}

/// The limits of pulls, and the download places they allow.
#[derive(Debug, Clone)]
pub(crate) struct PullLimits {
    pub(crate) limits: Limits,
    pub(crate) places: Arc<Places>,
}

impl PullLimits {
    fn new(limits: Limits) -> Self {
        Self { limits, places: Arc::new(Places::new(limits.downloads)) }
    }
}

/// An id prefix that matches several images.
#[derive(Debug, thiserror::Error)]
#[error("image id prefix {prefix} is ambiguous: {} images match: {}", .ids.len(), join(.ids))]
pub struct AmbiguousImageId {
    prefix: String,
    ids: Vec<Digest>,
}

impl model::ErrorClass for AmbiguousImageId {
    fn kind(&self) -> model::ErrorKind {
        model::ErrorKind::Invalid
    }
}

fn join(ids: &[Digest]) -> String {
    ids.iter().take(8).map(Digest::as_str).collect::<Vec<_>>().join(", ")
}

/// The config of an image that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("reading the config of image {image}")]
pub struct ConfigError {
    image: Digest,
    source: ConfigCause,
}

/// Why the config of an image could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigCause {
    /// Its file could not be read.
    #[error(transparent)]
    Disk(#[from] FileError),
    /// Its file is damaged.
    #[error(transparent)]
    Damaged(#[from] ManifestError),
}

impl model::ErrorClass for ConfigError {
    fn kind(&self) -> model::ErrorKind {
        model::ErrorKind::Internal
    }
}

/// Account files that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("reading the users and groups of image {image}")]
pub struct AccountsError {
    image: Digest,
    source: AccountsCause,
}

/// The reason why account files could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AccountsCause {
    /// The image's layers were removed.
    #[error(transparent)]
    Gone(#[from] HoldError),
    /// The image could not be mounted.
    #[error(transparent)]
    View(#[from] RootfsError),
}

impl model::ErrorClass for AccountsError {
    fn kind(&self) -> model::ErrorKind {
        match &self.source {
            AccountsCause::Gone(source) => source.kind(),
            AccountsCause::View(source) => source.kind(),
        }
    }
}

impl Store {
    /// Opens the store at `root` and creates it if needed. Only one process can have it open.
    ///
    /// Removes the leftovers of a crash; unused layers are freed only by [`Store::remove_unused`].
    pub fn open(root: &Path, registries: Registries, limits: Limits) -> Result<Self, OpenError> {
        let counters = Arc::<PullCounters>::default();
        Ok(Self {
            catalog: Arc::new(Catalog::open(root)?),
            terms: RwLock::new(PullLimits::new(limits)),
            pull_locks: Arc::default(),
            http: RwLock::new(Arc::new(Http::new(registries, limits.stall, counters.clone()))),
            counters,
            accounts: Mutex::default(),
        })
    }

    /// Sets the registry configuration for the next pulls.
    pub fn set_registries(&self, registries: Registries) {
        let mut http = self.http.write();
        if http.registries != registries {
            *http = Arc::new(Http::new(registries, self.limits().stall, self.counters.clone()));
        }
    }

    /// Sets the limits for the next pulls and imports; active ones keep the old limits, in addition
    /// to the new ones.
    pub fn set_limits(&self, limits: Limits) {
        let mut terms = self.terms.write();
        let old = terms.limits;
        if old != limits {
            *terms = PullLimits::new(limits);
        }
        drop(terms);
        if old.stall != limits.stall {
            let mut http = self.http.write();
            *http = Arc::new(Http::new(http.registries.clone(), limits.stall, self.counters.clone()));
        }
    }

    pub(crate) fn pull_limits(&self) -> PullLimits {
        self.terms.read().clone()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.pull_limits().limits
    }

    pub(crate) fn http(&self) -> Arc<Http> {
        self.http.read().clone()
    }

    /// Returns the registries to search for an image name without a registry.
    pub fn search(&self) -> Vec<String> {
        self.http().registries.search.clone()
    }

    /// Returns counters of all pulls since the store was opened, and the active pulls.
    pub fn traffic(&self) -> PullTotals {
        self.counters.traffic()
    }

    /// Finds an image by id, by tag or digest reference, or by an unambiguous prefix of its id.
    ///
    /// A name without a registry is looked up in each of the registries to search.
    pub fn find(&self, text: &str) -> Option<Arc<Image>> {
        self.find_named(text).map(|(image, _)| image)
    }

    /// Does the same as [`Store::find`], but returns an error if `text` is the prefix of several
    /// ids.
    pub fn lookup(&self, text: &str) -> Result<Option<Arc<Image>>, AmbiguousImageId> {
        if let Some(found) = self.find(text) {
            return Ok(Some(found));
        }
        let ids: Vec<Digest> = self.catalog.state().all_beginning_with(text).map(|image| image.id.clone()).collect();
        if ids.len() > 1 { Err(AmbiguousImageId { prefix: text.to_owned(), ids }) } else { Ok(None) }
    }

    /// Does the same as [`Store::find`], and returns the full name by which the image was found, if
    /// any.
    pub(crate) fn find_named(&self, text: &str) -> Option<(Arc<Image>, Option<String>)> {
        let http = self.http();
        let state = self.catalog.state();
        state.find(text, &http.registries.search).map(|(image, name)| (image.clone(), name))
    }

    /// Returns all images, by id.
    pub fn list(&self) -> Vec<Arc<Image>> {
        self.catalog.state().images.values().cloned().collect()
    }

    /// Removes an image if `text` is its id, otherwise that name, and the image with its last tag.
    /// A missing image is not an error. Layers stay while another image or a hold uses them.
    /// Blocks.
    pub fn remove(&self, text: &str) -> Result<(), FileError> {
        if let Some(removed) = self.catalog.remove(text, &self.http().registries.search, false)? {
            self.forget_accounts(&removed.id);
        }
        Ok(())
    }

    pub(crate) fn forget_accounts(&self, id: &Digest) {
        self.accounts.lock().remove(id);
    }

    /// Returns the directory with all layers.
    pub fn layers_dir(&self) -> PathBuf {
        self.catalog.layers_dir()
    }

    /// Returns an image's layers, top-most first.
    pub fn lowers(&self, image: &Image) -> Result<Vec<LayerNumber>, HoldError> {
        self.catalog.lowers(image)
    }

    /// Keeps an image's layers, even if the image is removed, until `owner` is released; returns
    /// its [`Store::lowers`].
    pub fn hold(&self, owner: &str, id: &Digest) -> Result<Vec<LayerNumber>, HoldError> {
        self.catalog.hold(owner, id)
    }

    /// Does the same as [`Store::hold`] by layers: for containers found after a restart,
    /// whose image may have been removed.
    pub fn hold_lowers(&self, owner: &str, lowers: &[LayerNumber]) -> Result<(), HoldError> {
        self.catalog.hold_lowers(owner, lowers)
    }

    /// Removes all holds of `owner` and frees layers without other users. Blocks.
    pub fn release(&self, owner: &str) -> Result<(), FileError> {
        self.catalog.release(owner)
    }

    /// Frees unused layers now, and enables freeing for later calls. Call it once all holds are
    /// known. Blocks.
    pub fn remove_unused(&self) -> Result<(), FileError> {
        self.catalog.remove_unused()
    }

    /// Returns the disk usage of the store, as `du` would report it. Reads a few small directories.
    pub fn usage(&self) -> Usage {
        self.catalog.usage()
    }

    /// Returns the content of a manifest or image config, if an image in the store has it. Blocks.
    pub fn blob(&self, digest: &Digest) -> Result<Vec<u8>, FileError> {
        let path = self.catalog.blob_path(digest);
        std::fs::read(&path).map_err(safe_fs::at("reading", &path))
    }

    /// Reads the config of an image. The store does not keep it in memory, because the image decides its size.
    pub fn config(&self, image: &Image) -> Result<Config, ConfigError> {
        let failed = |source| ConfigError { image: image.id.clone(), source };
        let json = self.blob(&image.id).map_err(|error| failed(error.into()))?;
        let blob = ConfigBlob::parse(&json).map_err(|error| failed(error.into()))?;
        Ok(blob.config)
    }

    /// Returns the users and groups of an image from its account files. Blocks the first time.
    pub fn accounts(&self, image: &Image) -> Result<Arc<Accounts>, AccountsError> {
        let cached = self.accounts.lock().get(&image.id).cloned();
        if let Some(accounts) = cached {
            return Ok(accounts);
        }
        let failed = |source| AccountsError { image: image.id.clone(), source };
        // Prevents a concurrent removal of the image from removing its files.
        let _pin = self.catalog.pin(image.chain.clone());
        let lowers = self.lowers(image).map_err(|error| failed(error.into()))?;
        let files = ["etc/passwd", "etc/group"];
        let view = self.catalog.root.join("view");
        let [passwd, group] =
            read_files(&self.layers_dir(), &lowers, &view, files, FILE_MAX).map_err(|error| failed(error.into()))?;
        let (passwd, group) = (passwd.unwrap_or_default(), group.unwrap_or_default());
        let accounts = Arc::new(Accounts::parse(&passwd, &group));
        if passwd.len() + group.len() > CACHED_ACCOUNTS_BYTES {
            return Ok(accounts);
        }
        let mut cache = self.accounts.lock();
        // Only for images in the store: a removed one must not stay in memory.
        if self.catalog.state().images.contains_key(&image.id) {
            while cache.len() >= CACHED_ACCOUNTS
                && let Some(other) = cache.keys().next().cloned()
            {
                cache.remove(&other);
            }
            cache.insert(image.id.clone(), accounts.clone());
        }
        Ok(accounts)
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
