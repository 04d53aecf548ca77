//! Pulls an image: manifest, config, then all missing layers concurrently, each streamed into its
//! directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::ErrorClass as _;
use model::error_chain::chain;
use sync::{KeyedGuard, KeyedLock};
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use crate::config::ConfigBlob;
use crate::digest::Digest;
use crate::layer_plan::plan;
use crate::limits::Limits;
use crate::manifest::{Document, Manifest, ManifestError};
use crate::platform::choose;
use crate::record::Image;
use crate::reference::{Reference, TagOrDigest};
use crate::registry::endpoint::{Credentials, RegistryLogin};
use crate::registry::fetch_error::{Attempt, Attempts, FetchError};
use crate::registry::http::Http;
use crate::registry::progress::{Progress, PullCounters};
use crate::registry::pull_cause::PullCause;
use crate::registry::pull_error::PullError;
use crate::registry::repository::Repository;
use crate::registry::transfer::places::Places;
use crate::store::catalog::Catalog;
use crate::store::commit::NewImage;
use crate::store::{PullLimits, Store};

/// Concurrent requests of one pull to check access to layers that are in the store.
const QUESTIONS_MAX: usize = 4;

/// Another pull of the same object is waited for as long as it receives enough bytes in this time.
const OVERTAKE_AFTER: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 30 });
const OVERTAKE_BYTES: u64 = 2 << 20;

/// An image to pull.
#[derive(Debug, Clone)]
pub struct PullRequest {
    /// The full names to try, in order of preference, as [`Reference::candidates`] returns them.
    pub candidates: Vec<Reference>,
    /// Credentials for one of the registries.
    pub credentials: Option<RegistryLogin>,
}

/// A pull of one image from one registry, with the state that its layers share.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) image: Reference,
    /// Endpoints that may have it, best first.
    pub(crate) remotes: Vec<Repository>,
    /// Index of the endpoint that served the last request.
    start: AtomicUsize,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) pull_locks: Arc<KeyedLock>,
    pub(crate) places: Arc<Places>,
    /// Limits the concurrent access checks for layers that are in the store.
    pub(crate) questions: Semaphore,
    pub(crate) limits: Limits,
    pub(crate) counters: Arc<PullCounters>,
    pub(crate) progress: Arc<Progress>,
}

/// The manifest that a name refers to.
struct ResolvedManifest {
    digest: Digest,
    /// Its content, if it was needed to compute the digest.
    json: Option<Vec<u8>>,
}

impl Store {
    /// Pulls an image unless the registry reports the digest of the image in the store:
    /// docs/images.md has the steps, and when a layer in the store is reused. The next candidate is
    /// tried only if a registry reports that it does not have the image. Dropping the future
    /// abandons the pull.
    pub async fn pull(&self, request: PullRequest) -> Result<Arc<Image>, PullError> {
        let progress = Arc::new(self.counters.begin());
        let pulled = self.pull_one(request, &progress).await;
        if let Err(error) = &pulled {
            progress.fail(PullCause::of(error));
        }
        pulled
    }

    async fn pull_one(&self, request: PullRequest, progress: &Arc<Progress>) -> Result<Arc<Image>, PullError> {
        let PullRequest { candidates, credentials } = request;
        let http = self.http();
        let alone = candidates.len() == 1;
        let mut tried = Vec::new();
        for image in candidates {
            let given = credentials.as_ref().filter(|login| login.registry == image.registry());
            let pull = Arc::new(self.pull_of(&http, image, given.map(|login| &login.credentials), progress)?);
            match pull.resolve().instrument(tracing::debug_span!("image.resolve")).await {
                Ok(top) => return pull.get(top).await,
                Err(error) if !alone && error.is_absence() => tried.push(error),
                Err(error) => return Err(error),
            }
        }
        Err(PullError::Search { tried })
    }

    fn pull_of(
        &self,
        http: &Arc<Http>,
        image: Reference,
        given: Option<&Credentials>,
        progress: &Arc<Progress>,
    ) -> Result<Pull, PullError> {
        progress.name(&image);
        let sources = http.registries.sources(image.registry(), image.path(), given)?;
        let PullLimits { limits, places } = self.pull_limits();
        let remotes = sources.into_iter().map(|source| Repository::new(http.clone(), source, image.path()));
        Ok(Pull {
            remotes: remotes.collect(),
            start: AtomicUsize::new(0),
            catalog: self.catalog.clone(),
            pull_locks: self.pull_locks.clone(),
            places,
            questions: Semaphore::new(QUESTIONS_MAX),
            limits,
            counters: self.counters.clone(),
            progress: progress.clone(),
            image,
        })
    }
}

impl Pull {
    /// Resolves the name to a digest.
    async fn resolve(&self) -> Result<ResolvedManifest, PullError> {
        let pick = self.image.pick().as_str();
        if let Some(digest) = self.first(|remote| remote.resolve(pick)).await? {
            let digest = match self.image.pick() {
                // A requested digest has precedence over the one in the registry's headers.
                TagOrDigest::Digest(wanted) => wanted.clone(),
                TagOrDigest::Tag(_) => digest,
            };
            return Ok(ResolvedManifest { digest, json: None });
        }
        let (digest, json) = self.document(pick).await?;
        Ok(ResolvedManifest { digest, json: Some(json) })
    }

    /// Downloads the image if it is missing, and logs the progress.
    async fn get(self: Arc<Self>, top: ResolvedManifest) -> Result<Arc<Image>, PullError> {
        let progress = self.progress.clone();
        let (image, is_new) = progress.log_progress_while(self.run(top)).await?;
        progress.succeed();
        match is_new {
            true => progress.log_end(),
            false => tracing::debug!(image = %self.image, "no pull needed: the image is already present"),
        }
        Ok(image)
    }

    /// Returns the image, and whether anything was downloaded.
    async fn run(self: &Arc<Self>, top: ResolvedManifest) -> Result<(Arc<Image>, bool), PullError> {
        if let Some(image) = self.find_local(&top.digest).await? {
            return Ok((image, false));
        }
        let name = self.image.to_string();
        let _turn = self.turn(&name, |_| Some(self.counters.bytes_of(&name))).await;
        // The previous owner of the lock may have downloaded it.
        if let Some(image) = self.find_local(&top.digest).await? {
            return Ok((image, false));
        }
        let (top, json) = match top {
            ResolvedManifest { digest, json: Some(json) } => (digest, json),
            ResolvedManifest { json: None, .. } => self.document(self.image.pick().as_str()).await?,
        };
        let (digest, json, manifest) = self.manifest(top.clone(), json).await?;
        let cap = self.limits.document_bytes;
        let config_json = self.first(|remote| remote.document(&manifest.config, cap)).await?;
        let blob = ConfigBlob::parse(&config_json).map_err(|source| self.unusable(source))?;
        let layers = manifest.layers.iter().map(Some);
        let plans = plan(Some(self.image.registry()), layers, &blob).map_err(|source| self.unusable(source))?;
        let chain: Vec<Digest> = plans.iter().map(|plan| plan.chain_id.clone()).collect();
        let pin = self.catalog.pin(chain.clone());
        let pinned = chain.clone();
        self.blocking(move |pull| pull.catalog.forget_lost(&pinned)).await??;
        let ready_layers = self.layers(plans, pin).await?;
        let (tags, digests) = self.names(&top);
        let new = NewImage {
            id: manifest.config.digest,
            config_json,
            user: blob.config.user,
            manifest: Some((digest, json)),
            chain,
            tags,
            digests,
        };
        let added = self.blocking(move |pull| {
            let ready_layers = ready_layers.take().ok_or_else(|| pull.aborted())?;
            Ok::<_, PullError>(pull.catalog.add(new, &ready_layers.layers)?)
        });
        Ok((added.await??, true))
    }

    /// Waits for the lock of `key`, but not while its owner makes almost no progress: then for the
    /// lock of the next key.
    ///
    /// `moved` returns the bytes received for a key, or `None` while nothing can arrive. Continuing
    /// without the lock is safe: a layer may only be downloaded twice.
    pub(crate) async fn turn(&self, key: &str, moved: impl Fn(&str) -> Option<u64>) -> (String, KeyedGuard) {
        let mut key = key.to_owned();
        loop {
            if let Some(lock) = self.turn_of(&key, &moved).await {
                return (key, lock);
            }
            tracing::debug!(key, "downloading content again: another pull of it makes almost no progress");
            key.push('+');
        }
    }

    async fn turn_of(&self, key: &str, moved: impl Fn(&str) -> Option<u64>) -> Option<KeyedGuard> {
        let mut lock = std::pin::pin!(self.pull_locks.lock(key));
        loop {
            let before = moved(key);
            if let Ok(lock) = tokio::time::timeout(OVERTAKE_AFTER, &mut lock).await {
                return Some(lock);
            }
            if let (Some(before), Some(now)) = (before, moved(key))
                && now.saturating_sub(before) < OVERTAKE_BYTES
            {
                return None;
            }
        }
    }

    /// Runs blocking `work` to its end on a blocking thread.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> T + Send + 'static,
    ) -> Result<T, PullError> {
        let pull = self.clone();
        let done = tokio::task::spawn_blocking(move || work(pull)).await;
        done.map_err(|_| self.aborted())
    }

    /// Returns the names of an image whose requested reference has the digest `top`.
    fn names(&self, top: &Digest) -> (Vec<String>, Vec<String>) {
        let tags = match self.image.pick() {
            TagOrDigest::Tag(_) => vec![self.image.to_string()],
            TagOrDigest::Digest(_) => Vec::new(),
        };
        (tags, vec![self.image.at(top).to_string()])
    }

    /// Returns an image in the store that was pulled from this repository with exactly this digest.
    async fn find_local(self: &Arc<Self>, top: &Digest) -> Result<Option<Arc<Image>>, PullError> {
        let (tags, digests) = self.names(top);
        let image = digests.first().and_then(|name| self.catalog.state().named(name).cloned());
        let Some(image) = image else { return Ok(None) };
        Ok(self.blocking(move |pull| pull.catalog.name(&image.id, &tags, &digests)).await??)
    }

    pub(crate) fn aborted(&self) -> PullError {
        PullError::Cut(self.image.to_string())
    }

    fn unusable(&self, source: ManifestError) -> PullError {
        PullError::Manifest { image: self.image.to_string(), source }
    }

    /// Returns the index of the endpoint to try first.
    pub(crate) fn start(&self) -> usize {
        self.start.load(Ordering::Relaxed)
    }

    /// Returns all endpoints in circular order, starting at index `start`.
    pub(crate) fn endpoints(&self, start: usize) -> impl Iterator<Item = &Repository> {
        let count = self.remotes.len();
        self.remotes.iter().cycle().skip(start % count.max(1)).take(count)
    }

    /// Returns the first successful response, starting at the endpoint that served the last
    /// request.
    pub(crate) async fn first<'a, T, F>(&'a self, ask: impl Fn(&'a Repository) -> F) -> Result<T, PullError>
    where
        F: Future<Output = Result<T, FetchError>>,
    {
        let mut tried = Vec::new();
        let start = self.start();
        for (skipped, remote) in self.endpoints(start).enumerate() {
            match ask(remote).await {
                Ok(answer) => {
                    self.log_fallback(remote, tried);
                    self.start.store((start + skipped) % self.remotes.len(), Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => tried.push(Attempt::new(remote, error)),
            }
        }
        Err(PullError::Fetch { image: self.image.to_string(), source: Attempts::new(tried) })
    }

    /// Logs that `remote` served a request on which other endpoints failed.
    pub(crate) fn log_fallback(&self, remote: &Repository, tried: Vec<Attempt>) {
        let tried = Attempts::new(tried);
        // A mirror may lack content.
        if tried.errors().any(|error| error.kind() != model::ErrorKind::NotFound) {
            let (image, endpoint) = (&self.image, remote.name());
            tracing::warn!(%image, endpoint, error = chain(&tried), "a registry endpoint failed; another endpoint of the registry served the pull");
        }
    }

    /// Downloads a manifest or index; returns its digest and content.
    async fn document(&self, pick: &str) -> Result<(Digest, Vec<u8>), PullError> {
        self.first(|remote| remote.manifest(pick, self.limits.document_bytes)).await
    }

    /// Downloads the manifest for this machine, through up to two levels of indexes.
    async fn manifest(&self, mut digest: Digest, mut json: Vec<u8>) -> Result<(Digest, Vec<u8>, Manifest), PullError> {
        for _ in 0..3 {
            match Document::parse(&json).map_err(|source| self.unusable(source))? {
                Document::Manifest(manifest) => return Ok((digest, json, manifest)),
                Document::Index(entries) => {
                    let chosen = choose(&entries).map_err(|source| self.unusable(source))?;
                    json = self.first(|remote| remote.entry(chosen, self.limits.document_bytes)).await?;
                    digest = chosen.digest.clone();
                }
            }
        }
        Err(self.unusable(ManifestError::Nested))
    }
}

#[cfg(test)]
#[path = "tests/pull.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/search.rs"]
mod search_tests;

#[cfg(test)]
#[path = "tests/permission.rs"]
mod permission_tests;

#[cfg(test)]
#[path = "tests/slow_registries.rs"]
mod slow_registries_tests;
