//! Downloads and unpacks the layers of one pull concurrently.

use std::sync::Arc;
use std::time::Duration;

use model::error_chain::chain;
use sync::KeyedGuard;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use crate::registry::fetch_error::{Attempt, Attempts, FetchError};
use crate::registry::pull::Pull;
use crate::registry::pull_error::PullError;
use crate::registry::transfer::pipe::pipe;
use crate::registry::transfer::places::Place;
use crate::registry::transfer::resumable_download::BlobStream;
use crate::store::commit::{LayerPlan, ReadyLayer};
use crate::store::layer_refs::Pin;

/// How often a download checks whether another one was faster.
const OVERTAKEN_EVERY: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// The resources of an unpacker until it has really ended, even if the pull was abandoned.
#[derive(Debug)]
struct UnpackGuard {
    /// Prevents other unpackers of this layer.
    _lock: KeyedGuard,
    /// A download place, and with it a share of the memory.
    place: Place,
    /// Closed when the unpacker has ended.
    alive: mpsc::Sender<()>,
}

/// Drops a value whose drop blocks, such as a layer that is not kept, on a blocking thread.
#[derive(Debug)]
pub(crate) struct DropBlocking<T: Send + 'static>(Option<T>);

/// A layer that is ready, and the sender that reports its drop to the pull.
type Unpacked = DropBlocking<(ReadyLayer, mpsc::Sender<()>)>;

/// The layers of a pull that are ready; the layers are dropped first.
#[derive(Debug)]
pub(crate) struct ReadyLayers {
    pub(crate) layers: Vec<ReadyLayer>,
    _pin: Pin,
    _alive: mpsc::Sender<()>,
}

impl<T: Send + 'static> DropBlocking<T> {
    fn new(what: T) -> Self {
        Self(Some(what))
    }

    /// Takes the value out; the caller must be able to block when dropping it.
    pub(crate) fn take(mut self) -> Option<T> {
        self.0.take()
    }
}

impl DropBlocking<ReadyLayers> {
    fn add(&mut self, ready: ReadyLayer) {
        if let Some(ready_layers) = &mut self.0 {
            ready_layers.layers.push(ready);
        }
    }
}

impl<T: Send + 'static> Drop for DropBlocking<T> {
    fn drop(&mut self) {
        let Some(what) = self.0.take() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(what))),
            Err(_) => drop(what),
        }
    }
}

impl Pull {
    /// Prepares all layers; the first error stops the others. On return all of them have ended, and
    /// after an error their unpacked files are removed.
    pub(crate) async fn layers(
        self: &Arc<Self>,
        plans: Vec<LayerPlan>,
        pin: Pin,
    ) -> Result<DropBlocking<ReadyLayers>, PullError> {
        // Every task of this pull has a sender: the channel closes when the last one is dropped.
        let (alive, mut gone) = mpsc::channel::<()>(1);
        let mut ready_layers = DropBlocking::new(ReadyLayers {
            layers: Vec::with_capacity(plans.len()),
            _pin: pin,
            _alive: alive.clone(),
        });
        let missing: Vec<u64> = plans.iter().filter(|plan| self.found(plan).is_none()).map(size).collect();
        self.progress.expect(missing.into_iter());
        let mut tasks = JoinSet::new();
        for plan in plans {
            let (pull, alive) = (self.clone(), alive.clone());
            let digest = plan.blob.as_ref().map(|blob| tracing::field::display(&blob.digest));
            let step = tracing::debug_span!("image.layer", digest, size = size(&plan));
            tasks.spawn(async move { pull.layer(plan, alive).await }.instrument(step));
        }
        drop(alive);
        while let Some(done) = tasks.join_next().await {
            match done.unwrap_or_else(|_| Err(self.aborted())) {
                Ok(unpacked) => unpacked.take().into_iter().for_each(|(ready, _)| ready_layers.add(ready)),
                Err(error) => {
                    drop(ready_layers);
                    tasks.shutdown().await;
                    gone.recv().await;
                    return Err(error);
                }
            }
        }
        Ok(ready_layers)
    }

    async fn layer(self: Arc<Self>, plan: LayerPlan, alive: mpsc::Sender<()>) -> Result<Unpacked, PullError> {
        if let Some(ready) = self.permitted(&plan).await {
            return Ok(DropBlocking::new((ready, alive)));
        }
        let (key, lock) = self.turn(&self.lock_key(&plan), |key| self.places.bytes_of(key)).await;
        if let Some(ready) = self.permitted(&plan).await {
            self.progress.skipped(size(&plan));
            return Ok(DropBlocking::new((ready, alive)));
        }
        let place = self.places.take(self.image.registry(), &key).await;
        let transfer = place.transfer.clone();
        let held = UnpackGuard { _lock: lock, place, alive: alive.clone() };
        tokio::select! {
            fetched = self.clone().fetch(&plan, held) => fetched,
            ready = self.overtaken(&plan) => {
                self.progress.lost(transfer.bytes());
                self.progress.skipped(size(&plan));
                Ok(DropBlocking::new((ready, alive)))
            }
        }
    }

    /// Returns the layer once a pull that overtook this one has provided it.
    async fn overtaken(&self, plan: &LayerPlan) -> ReadyLayer {
        loop {
            tokio::time::sleep(OVERTAKEN_EVERY).await;
            if let Some(ready) = self.permitted(plan).await {
                return ready;
            }
        }
    }

    /// Downloads one layer, trying one endpoint after another.
    async fn fetch(self: Arc<Self>, plan: &LayerPlan, mut held: UnpackGuard) -> Result<Unpacked, PullError> {
        let start = self.start();
        for skipped in 0..self.remotes.len() {
            let outcome;
            (outcome, held) = self.clone().download(plan, start + skipped, held).await?;
            match outcome {
                Err(PullError::Unpack { source, .. }) if source.blames_source() && skipped + 1 < self.remotes.len() => {
                    tracing::warn!(image = %self.image, error = &source as &dyn std::error::Error, "a registry endpoint sent an invalid layer; trying the next endpoint");
                }
                Ok(unpacked) => {
                    self.progress.unpacked();
                    return Ok(unpacked);
                }
                Err(error) => return Err(error),
            }
        }
        Err(self.aborted())
    }

    fn broken_off(&self, start: usize, rate: u64) -> Attempts {
        let registry = self.image.registry().to_owned();
        let attempt =
            self.endpoints(start).next().map(|remote| Attempt::new(remote, FetchError::Overtaken { registry, rate }));
        Attempts::new(attempt.into_iter().collect())
    }

    /// Returns a layer in the store that this registry has sent before.
    fn found(&self, plan: &LayerPlan) -> Option<ReadyLayer> {
        self.catalog.ready_from(&plan.chain_id, &plan.origin()?)
    }

    /// Does the same as [`Pull::found`], if the registry currently grants these credentials access.
    async fn permitted(&self, plan: &LayerPlan) -> Option<ReadyLayer> {
        let ready = self.found(plan)?;
        let blob = &plan.blob.as_ref()?.digest;
        let _turn = self.questions.acquire().await.ok()?;
        match self.first(|remote| remote.has_blob(blob)).await {
            Ok(()) => Some(ready),
            // The download will report the reason.
            Err(error) => {
                tracing::debug!(%blob, error = chain(&error), "cannot confirm access to a layer in the store; downloading it");
                None
            }
        }
    }

    /// Returns the lock key of a download. It includes the registry, since another one could claim
    /// the same layer and never send it.
    fn lock_key(&self, plan: &LayerPlan) -> String {
        let blob = plan.blob.as_ref().map_or("", |blob| blob.digest.as_str());
        format!("{} {blob} {}", self.image.registry(), plan.chain_id)
    }

    /// Streams one layer from the network into the unpacker, starting at endpoint index `start`.
    async fn download(
        self: Arc<Self>,
        plan: &LayerPlan,
        start: usize,
        held: UnpackGuard,
    ) -> Result<(Result<Unpacked, PullError>, UnpackGuard), PullError> {
        let Some(blob) = plan.blob.clone() else { return Err(self.aborted()) };
        let (writer, reader) = pipe(self.limits.pipe());
        let transfer = held.place.transfer.clone();
        let before = transfer.bytes();
        let (unpacker, layer) = (self.clone(), plan.clone());
        let unpacking = tokio::task::spawn_blocking(move || {
            // If the pull was abandoned, the layer is dropped and removed before the guard.
            DropBlocking::new((unpacker.catalog.receive(&layer, reader, &unpacker.limits), held))
        });
        let stream = BlobStream::new(self.clone(), &blob, writer, transfer.clone());
        let fetched = tokio::select! {
            fetched = stream.run(start) => fetched,
            rate = transfer.broken_off() => Err(self.broken_off(start, rate)),
        };
        let came = transfer.bytes() - before;
        let unpacked = unpacking.await.ok().and_then(DropBlocking::take);
        let (unpacked, held) = unpacked.ok_or_else(|| self.aborted())?;
        let unpacked = unpacked.map(|ready| DropBlocking::new((ready, held.alive.clone())));
        // After a network error, the unpacker has only seen a truncated stream.
        let outcome = match fetched {
            Err(source) => Err(PullError::Fetch { image: self.image.to_string(), source }),
            Ok(()) => unpacked.map_err(|source| PullError::Unpack { image: self.image.to_string(), source }),
        };
        if outcome.is_err() {
            self.progress.lost(came);
        }
        Ok((outcome, held))
    }
}

fn size(plan: &LayerPlan) -> u64 {
    plan.blob.as_ref().map_or(0, |blob| blob.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tells(std::sync::mpsc::Sender<std::thread::ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }

    #[test]
    fn a_blocking_value_is_dropped_on_a_blocking_thread() {
        let (to, from) = std::sync::mpsc::channel();
        let here = std::thread::current().id();
        drop(DropBlocking::new(Tells(to.clone())));
        assert_eq!(from.recv().unwrap(), here, "without a runtime it is dropped on the same thread");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { drop(DropBlocking::new(Tells(to.clone()))) });
        assert_ne!(from.recv().unwrap(), here);
        runtime.block_on(async { drop(DropBlocking::new(Tells(to)).take()) });
        assert_eq!(from.recv().unwrap(), here, "a value that is taken is dropped by its owner");
    }
}
