//! Pulling an image: manifest, config, then all missing layers at once, each streamed into its directory.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::add::{LayerPlan, NewImage, Ready};
use crate::config::ConfigBlob;
use crate::digest::Digest;
use crate::disk::DiskError;
use crate::endpoint::{BadEndpoint, Credentials};
use crate::image::Image;
use crate::manifest::{Descriptor, Document, Manifest, ManifestError, check_layer_count, choose};
use crate::reference::{BadReference, Pick, Reference};
use crate::registry::{FetchError, Remote};
use crate::shelf::Shelf;
use crate::store::Store;
use crate::turns::Turns;
use crate::unpack::{Blob, Limits, UnpackError};

/// Pieces of a blob between the network and the unpacker; a piece is at most some hundred KiB.
const PIECES: usize = 16;
/// How often a blob that brings nothing new is asked for again, per endpoint.
const RETRIES: u32 = 3;
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// An image that could not be pulled.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The name is not one.
    #[error(transparent)]
    Reference(#[from] BadReference),
    /// The name's registry cannot be turned into a URL.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// No endpoint had it.
    #[error("fetching {image}")]
    Fetch {
        /// The image.
        image: String,
        /// What the last endpoint said.
        source: FetchError,
    },
    /// The image is not usable here.
    #[error("image {image}")]
    Manifest {
        /// The image.
        image: String,
        /// Why not.
        source: ManifestError,
    },
    /// A layer could not be unpacked.
    #[error("unpacking {image}")]
    Unpack {
        /// The image.
        image: String,
        /// The layer's trouble.
        source: UnpackError,
    },
    /// The store failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A task of ours died.
    #[error("pulling {0} was cut short")]
    Cut(String),
}

impl PullError {
    /// The class of this error.
    pub fn kind(&self) -> model::Kind {
        match self {
            Self::Reference(source) => source.kind(),
            Self::Endpoint(_) => model::Kind::Invalid,
            Self::Fetch { source, .. } => source.kind(),
            Self::Manifest { source, .. } => source.kind(),
            Self::Unpack { source, .. } => source.kind(),
            Self::Disk(source) => source.kind(),
            Self::Cut(_) => model::Kind::Internal,
        }
    }
}

/// Everything the layers of one pull share.
struct Pull {
    image: Reference,
    remotes: Vec<Remote>,
    shelf: Arc<Shelf>,
    turns: Arc<Turns>,
    downloads: Arc<Semaphore>,
    limits: Limits,
}

impl Store {
    /// Pulls an image unless the registry says that we have it already.
    ///
    /// Callers asking for the same name wait for each other. Each asks the registry with its own credentials, so that
    /// nobody gets an image by another's right. Dropping the future abandons the pull and what it had unpacked.
    pub async fn pull(&self, name: &str, credentials: Option<Credentials>) -> Result<Arc<Image>, PullError> {
        let image: Reference = name.parse()?;
        let sources = self.registries().sources(image.registry(), credentials.as_ref())?;
        let remotes = sources.into_iter().map(|source| Remote::new(self.http.clone(), source, image.path()));
        let pull = Pull {
            remotes: remotes.collect(),
            shelf: self.shelf.clone(),
            turns: self.turns.clone(),
            downloads: self.downloads.clone(),
            limits: self.limits,
            image,
        };
        let _turn = self.turns.take(&pull.image.to_string()).await;
        Arc::new(pull).run().await
    }
}

impl Pull {
    async fn run(self: Arc<Self>) -> Result<Arc<Image>, PullError> {
        let pick = self.image.pick().as_str();
        if let Some(digest) = self.resolve(pick).await?
            && let Some(image) = self.known(&digest).await?
        {
            return Ok(image);
        }
        let (top, json) = self.document(pick).await?;
        let (digest, json, manifest) = self.manifest(top.clone(), json).await?;
        let names = self.names(&top);
        let id = manifest.config.digest.clone();
        if let Some(image) = self.blocking(move |pull| pull.shelf.name(&id, &names.0, &names.1)).await?? {
            return Ok(image);
        }
        let config_json = self.config(&manifest.config).await?;
        let blob = ConfigBlob::parse(&config_json).map_err(|source| self.unusable(source))?;
        let plans = plan(manifest.layers.iter().map(Some), &blob).map_err(|source| self.unusable(source))?;
        let chain: Vec<Digest> = plans.iter().map(|plan| plan.chain_id.clone()).collect();
        let pin = self.shelf.pin(chain.clone());
        let layers = self.layers(plans).await?;
        let (tags, digests) = self.names(&top);
        let new = NewImage {
            id: manifest.config.digest,
            config_json,
            config: blob.config,
            manifest: Some((digest, json)),
            chain,
            tags,
            digests,
        };
        self.blocking(move |pull| {
            let added = pull.shelf.add(new, &layers);
            drop(pin);
            added.map_err(PullError::from)
        })
        .await?
    }

    /// Runs `work` where it may block, to its end.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> T + Send + 'static,
    ) -> Result<T, PullError> {
        let pull = self.clone();
        let done = tokio::task::spawn_blocking(move || work(pull)).await;
        done.map_err(|_| self.cut())
    }

    /// The names an image gets when what was asked for has the digest `top`.
    fn names(&self, top: &Digest) -> (Vec<String>, Vec<String>) {
        let tags = match self.image.pick() {
            Pick::Tag(_) => vec![self.image.to_string()],
            Pick::Digest(_) => Vec::new(),
        };
        (tags, vec![self.image.at(top).to_string()])
    }

    /// An image we had from this repository under this very digest.
    async fn known(self: &Arc<Self>, top: &Digest) -> Result<Option<Arc<Image>>, PullError> {
        let (tags, digests) = self.names(top);
        let Some(image) = digests.first().and_then(|name| self.shelf.find(name)) else { return Ok(None) };
        if image.has_names(&tags, &digests) {
            return Ok(Some(image));
        }
        Ok(self.blocking(move |pull| pull.shelf.name(&image.id, &tags, &digests)).await??)
    }

    fn cut(&self) -> PullError {
        PullError::Cut(self.image.to_string())
    }

    fn unusable(&self, source: ManifestError) -> PullError {
        PullError::Manifest { image: self.image.to_string(), source }
    }

    /// What a failure at endpoint `at` means: that the next one is tried, or the end.
    fn failed(&self, at: usize, source: FetchError) -> Result<(), PullError> {
        if at + 1 == self.remotes.len() {
            return Err(PullError::Fetch { image: self.image.to_string(), source });
        }
        give_up_on(&self.remotes[at], &source);
        Ok(())
    }

    /// The digest that the first endpoint to answer has for `pick`.
    async fn resolve(&self, pick: &str) -> Result<Option<Digest>, PullError> {
        for (at, remote) in self.remotes.iter().enumerate() {
            match remote.resolve(pick).await {
                Ok(digest) => return Ok(digest),
                Err(error) => self.failed(at, error)?,
            }
        }
        Ok(None)
    }

    /// A manifest or index from the first endpoint that has it.
    async fn document(&self, pick: &str) -> Result<(Digest, Vec<u8>), PullError> {
        for (at, remote) in self.remotes.iter().enumerate() {
            match remote.manifest(pick, self.limits.document_bytes).await {
                Ok(document) => return Ok(document),
                Err(error) => self.failed(at, error)?,
            }
        }
        Err(self.cut())
    }

    /// The image config from the first endpoint that has it.
    async fn config(&self, config: &Descriptor) -> Result<Vec<u8>, PullError> {
        let cap = self.limits.document_bytes.min(config.size);
        for (at, remote) in self.remotes.iter().enumerate() {
            match remote.document(&config.digest, cap).await {
                Ok(json) => return Ok(json),
                Err(error) => self.failed(at, error)?,
            }
        }
        Err(self.cut())
    }

    /// The manifest for this machine, through an index (of an index) if need be.
    async fn manifest(&self, mut digest: Digest, mut json: Vec<u8>) -> Result<(Digest, Vec<u8>, Manifest), PullError> {
        for _ in 0..3 {
            match Document::parse(&json).map_err(|source| self.unusable(source))? {
                Document::Manifest(manifest) => return Ok((digest, json, manifest)),
                Document::Index(entries) => {
                    let chosen = choose(&entries).map_err(|source| self.unusable(source))?;
                    (digest, json) = self.document(chosen.digest.as_str()).await?;
                }
            }
        }
        Err(self.unusable(ManifestError::Nested))
    }

    /// Gets all layers ready; the first that fails ends the others, and with the answer all of them have ended.
    async fn layers(self: &Arc<Self>, plans: Vec<LayerPlan>) -> Result<Vec<Ready>, PullError> {
        let mut tasks = JoinSet::new();
        // Every unpacker holds a sender: nothing can be received once the last of them is gone.
        let (alive, mut gone) = mpsc::channel::<()>(1);
        for plan in plans {
            let (pull, alive) = (self.clone(), alive.clone());
            tasks.spawn(async move { pull.layer(plan, alive).await });
        }
        drop(alive);
        let mut layers = Vec::with_capacity(tasks.len());
        let mut outcome = Ok(());
        while let Some(done) = tasks.join_next().await {
            match done.unwrap_or_else(|_| Err(self.cut())) {
                Ok(ready) => layers.push(ready),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        tasks.shutdown().await;
        gone.recv().await;
        outcome.map(|()| layers)
    }

    async fn layer(self: Arc<Self>, plan: LayerPlan, alive: mpsc::Sender<()>) -> Result<Ready, PullError> {
        let _turn = self.turns.take(plan.chain_id.as_str()).await;
        if let Some(ready) = self.shelf.ready(&plan.chain_id) {
            return Ok(ready);
        }
        let _permit = self.downloads.acquire().await.map_err(|_| self.cut())?;
        let mut start = 0;
        loop {
            match self.clone().download(&plan, start, alive.clone()).await {
                Err(PullError::Unpack { source, .. }) if source.blames_source() && start + 1 < self.remotes.len() => {
                    give_up_on(&self.remotes[start], &source);
                    start += 1;
                }
                other => return other,
            }
        }
    }

    /// Streams one layer from the network into the unpacker, starting with endpoint `start`.
    async fn download(
        self: Arc<Self>,
        plan: &LayerPlan,
        start: usize,
        alive: mpsc::Sender<()>,
    ) -> Result<Ready, PullError> {
        let Some(blob) = plan.blob.clone() else { return Err(self.cut()) };
        let (sender, receiver) = mpsc::channel(PIECES);
        let (unpacker, layer) = (self.clone(), plan.clone());
        let unpacking = tokio::task::spawn_blocking(move || {
            let source = Pipe { receiver, piece: Bytes::new() };
            // If nobody waits any more, the layer is dropped, and removed by that, before the sender is.
            (unpacker.shelf.stage(&layer, source, &unpacker.limits), alive)
        });
        let fetched = self.stream(&blob, start, sender).await;
        let (unpacked, _alive) = unpacking.await.map_err(|_| self.cut())?;
        // If the network failed, the unpacker only saw the stream break off.
        fetched.map_err(|source| PullError::Fetch { image: self.image.to_string(), source })?;
        unpacked.map_err(|source| PullError::Unpack { image: self.image.to_string(), source })
    }

    /// Sends a blob's bytes in order, resuming where a connection broke; stops early if nobody listens.
    async fn stream(&self, blob: &Blob, start: usize, to: mpsc::Sender<Bytes>) -> Result<(), FetchError> {
        let mut came = 0u64;
        // Endpoints still worth asking, each with how often it brought nothing.
        let mut live: VecDeque<(&Remote, u32)> = self.remotes.iter().map(|remote| (remote, 0)).collect();
        live.rotate_left(start);
        loop {
            let Some((remote, barren)) = live.pop_front() else {
                return Err(FetchError::Short { blob: blob.digest.clone(), came });
            };
            let before = came;
            let outcome = self.pieces(remote, blob, &mut came, &to).await;
            if came >= blob.size || to.is_closed() {
                return outcome;
            }
            let barren = if came > before { 0 } else { barren + 1 };
            let error = outcome.err().unwrap_or_else(|| FetchError::Short { blob: blob.digest.clone(), came });
            // An endpoint that said no will say no again.
            if barren < RETRIES && error.kind() == model::Kind::Unavailable {
                live.push_back((remote, barren));
                tracing::debug!(blob = %blob.digest, came, %error, "asking for the rest of a blob");
                tokio::time::sleep(RETRY_PAUSE * (barren + 1)).await;
            } else if live.is_empty() {
                return Err(error);
            } else {
                give_up_on(remote, &error);
            }
        }
    }

    async fn pieces(
        &self,
        remote: &Remote,
        blob: &Blob,
        came: &mut u64,
        to: &mpsc::Sender<Bytes>,
    ) -> Result<(), FetchError> {
        let mut pieces = remote.blob(&blob.digest, *came).await?;
        while let Some(piece) = pieces.next().await? {
            *came = came.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            if to.send(piece).await.is_err() || *came > blob.size {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn give_up_on(remote: &Remote, error: &(dyn std::error::Error + 'static)) {
    tracing::warn!(endpoint = remote.name(), error, "trying the next endpoint");
}

/// Puts the layers' blobs, lowest first, and the config's diff ids together.
pub(crate) fn plan<'a>(
    layers: impl ExactSizeIterator<Item = Option<&'a Descriptor>>,
    config: &ConfigBlob,
) -> Result<Vec<LayerPlan>, ManifestError> {
    let diff_ids = config.diff_ids.len();
    if layers.len() != diff_ids {
        return Err(ManifestError::LayerCount { layers: layers.len(), diff_ids });
    }
    check_layer_count(diff_ids)?;
    let chain = config.chain();
    let parents = std::iter::once(None).chain(chain.iter().cloned().map(Some));
    let plans = chain.iter().zip(&config.diff_ids).zip(parents).zip(layers);
    let plans = plans.map(|(((chain_id, diff_id), parent), layer)| LayerPlan {
        chain_id: chain_id.clone(),
        diff_id: diff_id.clone(),
        parent,
        blob: layer.map(|layer| Blob { digest: layer.digest.clone(), size: layer.size }),
    });
    Ok(plans.collect())
}

/// The blocking end of a blob's stream.
struct Pipe {
    receiver: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
#[path = "pull_tests.rs"]
mod tests;
