//! Pulling an image: manifest, config, then all missing layers at once, each streamed into its directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

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
use crate::registry::fetch_error::{Attempt, Attempts, FetchError, error_chain};
use crate::registry::http::Http;
use crate::registry::progress::{Progress, PullCounters};
use crate::registry::pull_error::PullError;
use crate::registry::repository::Repository;
use crate::registry::transfer::places::Places;
use crate::store::catalog::Catalog;
use crate::store::commit::NewImage;
use crate::store::{PullLimits, Store};

/// Requests of one pull at once whether it may have layers that are here.
const QUESTIONS_MAX: usize = 4;

/// Another pull of the same thing is waited for as long as it brings so much in this time.
const OVERTAKE_AFTER: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 30 });
const OVERTAKE_BYTES: u64 = 2 << 20;

/// One image from one registry; everything its layers share.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) image: Reference,
    /// Where it may be, best first.
    pub(crate) remotes: Vec<Repository>,
    /// The number of the endpoint that had what was last asked for.
    start: AtomicUsize,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) pull_locks: Arc<KeyedLock>,
    pub(crate) places: Arc<Places>,
    /// Places among the questions for layers that are here.
    pub(crate) questions: Semaphore,
    pub(crate) limits: Limits,
    pub(crate) counters: Arc<PullCounters>,
    pub(crate) progress: Arc<Progress>,
}

/// What a registry has under a name.
struct ResolvedManifest {
    digest: Digest,
    /// Its content, where only that could tell.
    json: Option<Vec<u8>>,
}

impl Store {
    /// [`Store::pull_as`] with credentials for the registry that clients take the name for: that in it, or docker.io.
    pub async fn pull(&self, name: &str, credentials: Option<Credentials>) -> Result<Arc<Image>, PullError> {
        let login = match credentials {
            Some(credentials) => {
                let registry = name.parse::<Reference>()?.registry().to_owned();
                Some(RegistryLogin { registry, credentials })
            }
            None => None,
        };
        self.pull_as(name, login).await
    }

    /// Pulls an image unless the registry says that we have it already.
    ///
    /// Each caller asks the registry with its own credentials what the name stands for; then those who need the same
    /// image wait for each other. A layer that is here is used where this very registry has sent all of it before, and
    /// says that these credentials may have the blob; any other registry must send it, since it could claim to have what
    /// it has not. Dropping the future abandons the pull and what it had unpacked.
    ///
    /// A name without a registry is looked for in those that are searched, in order. The search goes on only where a
    /// registry says that it does not have the image: one that cannot be asked might have it.
    pub async fn pull_as(&self, name: &str, login: Option<RegistryLogin>) -> Result<Arc<Image>, PullError> {
        let http = self.http();
        let candidates = Reference::candidates(name, &http.registries.search)?;
        let alone = candidates.len() == 1;
        let progress = Arc::new(self.counters.begin());
        let mut tried = Vec::new();
        for image in candidates {
            let given = login.as_ref().filter(|login| login.registry == image.registry());
            let pull = Arc::new(self.pull_of(&http, image, given.map(|login| &login.credentials), &progress)?);
            match pull.resolve().instrument(tracing::debug_span!("image.resolve")).await {
                Ok(top) => return pull.get(top).await,
                Err(error) if !alone && error.is_absence() => tried.push(error),
                Err(error) => return Err(error),
            }
        }
        Err(PullError::Search { name: name.to_owned(), tried })
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
    /// What the name stands for now.
    async fn resolve(&self) -> Result<ResolvedManifest, PullError> {
        let pick = self.image.pick().as_str();
        if let Some(digest) = self.first(|remote| remote.resolve(pick)).await? {
            let digest = match self.image.pick() {
                // What a registry says of itself counts for nothing against what was asked for.
                TagOrDigest::Digest(wanted) => wanted.clone(),
                TagOrDigest::Tag(_) => digest,
            };
            return Ok(ResolvedManifest { digest, json: None });
        }
        let (digest, json) = self.document(pick).await?;
        Ok(ResolvedManifest { digest, json: Some(json) })
    }

    /// Brings the image here if it is not, and says in the log how that goes.
    async fn get(self: Arc<Self>, top: ResolvedManifest) -> Result<Arc<Image>, PullError> {
        let progress = self.progress.clone();
        let (image, is_new) = progress.log_progress_while(self.run(top)).await?;
        progress.succeed();
        match is_new {
            true => progress.log_end(),
            false => tracing::debug!(image = %self.image, "is here already"),
        }
        Ok(image)
    }

    /// The image, and whether anything had to be fetched for it.
    async fn run(self: &Arc<Self>, top: ResolvedManifest) -> Result<(Arc<Image>, bool), PullError> {
        if let Some(image) = self.find_local(&top.digest).await? {
            return Ok((image, false));
        }
        let name = self.image.to_string();
        let _turn = self.turn(&name, |_| Some(self.counters.bytes_of(&name))).await;
        // Whoever had the turn before may have brought it.
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

    /// Waits for the lock of `key`, but not behind work that hardly moves: then for the lock of a key after it.
    ///
    /// `moved` gives the bytes that came for a key, None while nothing can come. Nothing goes wrong without the lock:
    /// something may only be fetched twice.
    pub(crate) async fn turn(&self, key: &str, moved: impl Fn(&str) -> Option<u64>) -> (String, KeyedGuard) {
        let mut key = key.to_owned();
        loop {
            if let Some(lock) = self.turn_of(&key, &moved).await {
                return (key, lock);
            }
            tracing::debug!(key, "not waiting for a pull that hardly moves");
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

    /// Runs `work` where it may block, to its end.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> T + Send + 'static,
    ) -> Result<T, PullError> {
        let pull = self.clone();
        let done = tokio::task::spawn_blocking(move || work(pull)).await;
        done.map_err(|_| self.aborted())
    }

    /// The names an image gets when what was asked for has the digest `top`.
    fn names(&self, top: &Digest) -> (Vec<String>, Vec<String>) {
        let tags = match self.image.pick() {
            TagOrDigest::Tag(_) => vec![self.image.to_string()],
            TagOrDigest::Digest(_) => Vec::new(),
        };
        (tags, vec![self.image.at(top).to_string()])
    }

    /// An image we had from this repository under this very digest.
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

    /// The number of the endpoint to begin with.
    pub(crate) fn start(&self) -> usize {
        self.start.load(Ordering::Relaxed)
    }

    /// All endpoints, beginning with number `start` and going round.
    pub(crate) fn endpoints(&self, start: usize) -> impl Iterator<Item = &Repository> {
        let count = self.remotes.len();
        self.remotes.iter().cycle().skip(start % count.max(1)).take(count)
    }

    /// The answer of the first endpoint that has one, beginning with the one that had the last.
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

    /// Says in the log that `remote` had what others should have had.
    pub(crate) fn log_fallback(&self, remote: &Repository, tried: Vec<Attempt>) {
        let tried = Attempts::new(tried);
        // A mirror need not have everything.
        if tried.errors().any(|error| error.kind() != model::ErrorKind::NotFound) {
            let (image, endpoint) = (&self.image, remote.name());
            tracing::warn!(%image, endpoint, error = error_chain(&tried), "an endpoint failed and another one did not");
        }
    }

    /// A manifest or index, and its digest.
    async fn document(&self, pick: &str) -> Result<(Digest, Vec<u8>), PullError> {
        self.first(|remote| remote.manifest(pick, self.limits.document_bytes)).await
    }

    /// The manifest for this machine, through an index (of an index) if need be.
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
