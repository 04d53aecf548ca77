//! The layers of one pull: fetched and unpacked side by side.

use std::sync::Arc;
use std::time::Duration;

use sync::KeyedGuard;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use crate::registry::fetch_error::{Attempt, Attempts, FetchError, error_chain};
use crate::registry::pull::Pull;
use crate::registry::pull_error::PullError;
use crate::registry::transfer::pipe::pipe;
use crate::registry::transfer::places::Place;
use crate::registry::transfer::resumable_download::BlobStream;
use crate::store::commit::{LayerPlan, ReadyLayer};
use crate::store::layer_refs::Pin;

/// How often a download looks whether another one was faster.
const OVERTAKEN_EVERY: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// What an unpacker has until it has really ended, whether or not anybody still waits for it.
#[derive(Debug)]
struct UnpackGuard {
    /// Nobody else unpacks this layer.
    _lock: KeyedGuard,
    /// A place among the downloads, and with it a share of the memory.
    place: Place,
    /// Tells the pull that it has ended.
    alive: mpsc::Sender<()>,
}

/// Something that takes long to let go, such as a layer that nobody keeps: dropped, it goes on a thread that may block.
#[derive(Debug)]
pub(crate) struct DropBlocking<T: Send + 'static>(Option<T>);

/// A layer that is ready, and word to the pull once that is let go.
type Unpacked = DropBlocking<(ReadyLayer, mpsc::Sender<()>)>;

/// What a pull has in hand; the layers go first.
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

    /// Hands it over; whoever drops it then must be able to block.
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
    /// Gets all layers ready; the first that fails ends the others, and with the answer all of them have ended and what
    /// they had unpacked is gone.
    pub(crate) async fn layers(
        self: &Arc<Self>,
        plans: Vec<LayerPlan>,
        pin: Pin,
    ) -> Result<DropBlocking<ReadyLayers>, PullError> {
        // All who have something of this pull hold a sender: nothing can be received once the last of them is gone.
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

    /// The layer, once a pull that has overtaken this one has brought it.
    async fn overtaken(&self, plan: &LayerPlan) -> ReadyLayer {
        loop {
            tokio::time::sleep(OVERTAKEN_EVERY).await;
            if let Some(ready) = self.permitted(plan).await {
                return ready;
            }
        }
    }

    /// Fetches one layer, from one endpoint after another.
    async fn fetch(self: Arc<Self>, plan: &LayerPlan, mut held: UnpackGuard) -> Result<Unpacked, PullError> {
        let start = self.start();
        for skipped in 0..self.remotes.len() {
            let outcome;
            (outcome, held) = self.clone().download(plan, start + skipped, held).await?;
            match outcome {
                Err(PullError::Unpack { source, .. }) if source.blames_source() && skipped + 1 < self.remotes.len() => {
                    tracing::warn!(image = %self.image, error = &source as &dyn std::error::Error, "trying the next endpoint");
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

    /// A layer that is here, and that this registry has sent before.
    fn found(&self, plan: &LayerPlan) -> Option<ReadyLayer> {
        self.catalog.ready_from(&plan.chain_id, &plan.origin()?)
    }

    /// [`Pull::found`], if the registry says now that these credentials may have it.
    async fn permitted(&self, plan: &LayerPlan) -> Option<ReadyLayer> {
        let ready = self.found(plan)?;
        let blob = &plan.blob.as_ref()?.digest;
        let _turn = self.questions.acquire().await.ok()?;
        match self.first(|remote| remote.has_blob(blob)).await {
            Ok(()) => Some(ready),
            // Fetching it will tell why.
            Err(error) => {
                tracing::debug!(%blob, error = error_chain(&error), "a layer that is here is fetched once more");
                None
            }
        }
    }

    /// The key of a download's lock. Another registry may claim the same layer, and never send it.
    fn lock_key(&self, plan: &LayerPlan) -> String {
        let blob = plan.blob.as_ref().map_or("", |blob| blob.digest.as_str());
        format!("{} {blob} {}", self.image.registry(), plan.chain_id)
    }

    /// Streams one layer from the network into the unpacker, beginning with endpoint number `start`.
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
            // If nobody waits any more, the layer is dropped, and removed by that, before what is held.
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
        // If the network failed, the unpacker only saw the stream break off.
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
    fn what_is_let_go_is_dropped_where_nobody_waits() {
        let (to, from) = std::sync::mpsc::channel();
        let here = std::thread::current().id();
        drop(DropBlocking::new(Tells(to.clone())));
        assert_eq!(from.recv().unwrap(), here, "without a runtime there is nobody to wait");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { drop(DropBlocking::new(Tells(to.clone()))) });
        assert_ne!(from.recv().unwrap(), here);
        runtime.block_on(async { drop(DropBlocking::new(Tells(to)).take()) });
        assert_eq!(from.recv().unwrap(), here, "who takes it has it");
    }
}
