//! The layers of one pull: fetched and unpacked side by side.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinSet;

use crate::registry::pipe::pipe;
use crate::registry::pull::Pull;
use crate::registry::pull_error::PullError;
use crate::registry::stream::Stream;
use crate::store::add::{LayerPlan, Ready};
use crate::turns::Turn;

/// What an unpacker has until it has really ended, whether or not anybody still waits for it.
#[derive(Debug)]
struct Held {
    /// Nobody else unpacks this layer.
    _turn: Turn,
    /// A place among the downloads, and with it a share of the memory.
    _place: OwnedSemaphorePermit,
    /// Tells the pull that it has ended.
    _alive: mpsc::Sender<()>,
}

impl Pull {
    /// Gets all layers ready; the first that fails ends the others, and with the answer all of them have ended.
    pub(crate) async fn layers(self: &Arc<Self>, plans: Vec<LayerPlan>) -> Result<Vec<Ready>, PullError> {
        let (mut layers, mut missing) = (Vec::with_capacity(plans.len()), Vec::new());
        for plan in plans {
            match self.shelf.ready(&plan.chain_id) {
                Some(ready) => layers.push(ready),
                None => missing.push(plan),
            }
        }
        self.progress.expect(missing.iter().map(size));
        let mut tasks = JoinSet::new();
        // Every unpacker holds a sender: nothing can be received once the last of them is gone.
        let (alive, mut gone) = mpsc::channel::<()>(1);
        for plan in missing {
            let (pull, alive) = (self.clone(), alive.clone());
            tasks.spawn(async move { pull.layer(plan, alive).await });
        }
        drop(alive);
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
        let turn = self.turns.take(plan.chain_id.as_str()).await;
        if let Some(ready) = self.shelf.ready(&plan.chain_id) {
            self.progress.spared(size(&plan));
            return Ok(ready);
        }
        let place = self.downloads.clone().acquire_owned().await.map_err(|_| self.cut())?;
        let mut held = Held { _turn: turn, _place: place, _alive: alive };
        let start = self.start();
        for skipped in 0..self.remotes.len() {
            let outcome;
            (outcome, held) = self.clone().download(&plan, start + skipped, held).await?;
            match outcome {
                Err(PullError::Unpack { source, .. }) if source.blames_source() && skipped + 1 < self.remotes.len() => {
                    tracing::warn!(image = %self.image, error = &source as &dyn std::error::Error, "trying the next endpoint");
                }
                Ok(ready) => {
                    self.progress.unpacked();
                    return Ok(ready);
                }
                Err(error) => return Err(error),
            }
        }
        Err(self.cut())
    }

    /// Streams one layer from the network into the unpacker, beginning with endpoint number `start`.
    async fn download(
        self: Arc<Self>,
        plan: &LayerPlan,
        start: usize,
        held: Held,
    ) -> Result<(Result<Ready, PullError>, Held), PullError> {
        let Some(blob) = plan.blob.clone() else { return Err(self.cut()) };
        let (inlet, outlet) = pipe(self.limits.pipe());
        let (unpacker, layer) = (self.clone(), plan.clone());
        let unpacking = tokio::task::spawn_blocking(move || {
            // If nobody waits any more, the layer is dropped, and removed by that, before what is held.
            (unpacker.shelf.stage(&layer, outlet, &unpacker.limits), held)
        });
        let (came, fetched) = Stream::new(self.clone(), &blob, inlet).run(start).await;
        let (unpacked, held) = unpacking.await.map_err(|_| self.cut())?;
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
