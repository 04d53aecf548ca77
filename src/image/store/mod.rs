//! The store as the daemon uses it.

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
use crate::store::durable::DiskError;
use crate::store::layer_refs::HoldError;

/// Images whose accounts are kept in memory.
const CACHED_ACCOUNTS: usize = 128;
/// The size of account files above which they are read for each container.
const CACHED_ACCOUNTS_BYTES: usize = 16 << 10;

/// All images of this machine. Cheap calls answer from memory; those that touch the disk say so.
#[derive(Debug)]
pub struct Store {
    pub(crate) catalog: Arc<Catalog>,
    terms: RwLock<PullLimits>,
    /// One pull per name, and one download per layer and registry, at a time, unless one hardly moves.
    pub(crate) pull_locks: Arc<KeyedLock>,
    pub(crate) counters: Arc<PullCounters>,
    /// The registries and how they are reached.
    http: RwLock<Arc<Http>>,
    accounts: Mutex<HashMap<Digest, Arc<Accounts>>>,
}

/// What pulls may take, and the places among the downloads that this leaves.
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

/// A prefix of several image ids.
#[derive(Debug, thiserror::Error)]
#[error("finding image {prefix}: {} images have ids that begin with it: {}", .ids.len(), join(.ids))]
pub struct AmbiguousImageId {
    prefix: String,
    ids: Vec<Digest>,
}

impl AmbiguousImageId {
    /// The class of this error.
    pub fn kind(&self) -> model::ErrorKind {
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
    Disk(#[from] DiskError),
    /// Its file is damaged.
    #[error(transparent)]
    Damaged(#[from] ManifestError),
}

impl ConfigError {
    /// The class of this error.
    pub fn kind(&self) -> model::ErrorKind {
        model::ErrorKind::Internal
    }
}

/// Account files that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("reading the accounts of image {image}")]
pub struct AccountsError {
    image: Digest,
    source: AccountsCause,
}

/// Why account files could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AccountsCause {
    /// The image's layers are gone.
    #[error(transparent)]
    Gone(#[from] HoldError),
    /// The image could not be looked into.
    #[error(transparent)]
    View(#[from] RootfsError),
}

impl AccountsError {
    /// The class of this error.
    pub fn kind(&self) -> model::ErrorKind {
        match &self.source {
            AccountsCause::Gone(source) => source.kind(),
            AccountsCause::View(source) => source.kind(),
        }
    }
}

impl Store {
    /// Opens the store at `root`, making it if need be. Only one process can have it open.
    ///
    /// What a crash left half done is removed here; layers nobody uses only by [`Store::remove_unused`].
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

    /// Uses other registry settings from the next pull on.
    pub fn set_registries(&self, registries: Registries) {
        let mut http = self.http.write();
        if http.registries != registries {
            *http = Arc::new(Http::new(registries, self.limits().stall, self.counters.clone()));
        }
    }

    /// Uses other limits from the next pull or import on; those under way end by the old ones, beside the new.
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

    /// What pulls have moved since the store was opened, and are moving.
    pub fn traffic(&self) -> PullTotals {
        self.counters.traffic()
    }

    /// Finds an image by id, by tag or digest reference, or by a prefix of its id that no other image has.
    ///
    /// A name without a registry is looked for under each of those that are searched.
    pub fn find(&self, text: &str) -> Option<Arc<Image>> {
        self.find_named(text).map(|(image, _)| image)
    }

    /// [`Store::find`], with an error in place of nothing where `text` is the prefix of several ids.
    pub fn lookup(&self, text: &str) -> Result<Option<Arc<Image>>, AmbiguousImageId> {
        if let Some(found) = self.find(text) {
            return Ok(Some(found));
        }
        let ids: Vec<Digest> = self.catalog.state().all_beginning_with(text).map(|image| image.id.clone()).collect();
        if ids.len() > 1 { Err(AmbiguousImageId { prefix: text.to_owned(), ids }) } else { Ok(None) }
    }

    /// [`Store::find`], and in full the name that it was found by, if it was by one.
    pub(crate) fn find_named(&self, text: &str) -> Option<(Arc<Image>, Option<String>)> {
        let http = self.http();
        let state = self.catalog.state();
        state.find(text, &http.registries.search).map(|(image, name)| (image.clone(), name))
    }

    /// All images, by id.
    pub fn list(&self) -> Vec<Arc<Image>> {
        self.catalog.state().images.values().cloned().collect()
    }

    /// Removes an image: all of it if named by id, otherwise that name, and all of it with its last tag.
    ///
    /// It is no error if there is no such image. Layers stay as long as another image or a hold uses them. Blocks.
    pub fn remove(&self, text: &str) -> Result<(), DiskError> {
        if let Some(id) = self.catalog.remove(text, &self.http().registries.search)? {
            self.forget_accounts(&id);
        }
        Ok(())
    }

    pub(crate) fn forget_accounts(&self, id: &Digest) {
        self.accounts.lock().remove(id);
    }

    /// The directory that [`Store::lowers`] is relative to.
    pub fn layers_dir(&self) -> PathBuf {
        self.catalog.layers_dir()
    }

    /// An image's layer directories relative to [`Store::layers_dir`], top-most first.
    pub fn lowers(&self, image: &Image) -> Result<Vec<String>, HoldError> {
        self.catalog.lowers(image)
    }

    /// Keeps an image's layers, whatever happens to the image, until `owner` is released; gives its [`Store::lowers`].
    pub fn hold(&self, owner: &str, id: &Digest) -> Result<Vec<String>, HoldError> {
        self.catalog.hold(owner, id)
    }

    /// [`Store::hold`] by layer directories: for containers found after a restart, whose image may be gone.
    pub fn hold_lowers(&self, owner: &str, lowers: &[String]) -> Result<(), HoldError> {
        self.catalog.hold_lowers(owner, lowers)
    }

    /// Ends all holds of `owner` and frees layers nobody else uses. Blocks.
    pub fn release(&self, owner: &str) -> Result<(), DiskError> {
        self.catalog.release(owner)
    }

    /// Frees layers nobody uses, now and from now on. To be called once all holds are known again. Blocks.
    pub fn remove_unused(&self) -> Result<(), DiskError> {
        self.catalog.remove_unused()
    }

    /// Space the store takes, as `du` would count it. Looks at a few small directories.
    pub fn usage(&self) -> Usage {
        self.catalog.usage()
    }

    /// A manifest or image config as it came, if an image here has it. Blocks.
    pub fn blob(&self, digest: &Digest) -> Result<Vec<u8>, DiskError> {
        let path = self.catalog.blob_path(digest);
        std::fs::read(&path).map_err(durable::at("reading", &path))
    }

    /// Reads the config of an image. It is not kept in memory: its size is the choice of whoever made the image.
    pub fn config(&self, image: &Image) -> Result<Config, ConfigError> {
        let failed = |source| ConfigError { image: image.id.clone(), source };
        let json = self.blob(&image.id).map_err(|error| failed(error.into()))?;
        let blob = ConfigBlob::parse(&json).map_err(|error| failed(error.into()))?;
        Ok(blob.config)
    }

    /// The users and groups of an image, as its own files have them. Blocks the first time.
    pub fn accounts(&self, image: &Image) -> Result<Arc<Accounts>, AccountsError> {
        let cached = self.accounts.lock().get(&image.id).cloned();
        if let Some(accounts) = cached {
            return Ok(accounts);
        }
        let failed = |source| AccountsError { image: image.id.clone(), source };
        // Whoever removes the image meanwhile does not take its files from under us.
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
        // Only for images that are here: a removed one must not stay in memory.
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
