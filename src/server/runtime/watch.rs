//! Listening to the shims: containers end, and shims may.

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use model::{ContainerId, Exit, PodId, PodPhase, Trouble};
use tokio::sync::mpsc;

use super::{Runtime, blocking};
use crate::shim::{Client, ShimEvent};
use crate::store::disk;

/// The exit code of a container whose end nobody saw.
const LOST: i32 = 255;

impl Runtime {
    /// Takes a pod's shim into service.
    pub(super) fn attach(self: &Arc<Self>, pod: PodId, shim: Client, mut events: mpsc::UnboundedReceiver<ShimEvent>) {
        self.shims.lock().unwrap_or_else(PoisonError::into_inner).insert(pod.clone(), shim);
        let runtime = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                let Some(runtime) = runtime.upgrade() else { return };
                match event {
                    ShimEvent::Exited { container, exit } => runtime.exited(&container, exit),
                    ShimEvent::LogLost { container, bytes, error } => {
                        tracing::warn!(%container, bytes, error, "output could not be logged");
                    }
                    ShimEvent::Gone => {
                        runtime.shim_gone(&pod).await;
                        return;
                    }
                }
            }
        });
    }

    pub(super) fn exited(&self, id: &ContainerId, exit: Exit) {
        let Ok(Some(entry)) = self.containers.find(id.as_str()) else { return };
        let told = entry.update(&self.layout, |record| record.phase = record.phase.exit(exit));
        if let Err(error) = told {
            tracing::warn!(container = %id, error = crate::chain::chain(&error), "an exit could not be recorded");
        }
    }

    /// Without its shim a pod is nothing: nobody would see its containers end. What still runs is ended, and the
    /// client makes a new pod.
    pub(super) async fn shim_gone(self: &Arc<Self>, id: &PodId) {
        let expected = self.shims.lock().unwrap_or_else(PoisonError::into_inner).remove(id).is_none();
        let Ok(Some(pod)) = self.pods.find(id.as_str()) else { return };
        if expected || pod.look().phase == PodPhase::NotReady {
            return;
        }
        tracing::warn!(pod = %id, "the pod's shim died; ending its containers");
        self.bury(id).await;
    }

    /// Marks a pod whose shim is dead, and its containers, as ended, after making it true.
    pub(super) async fn bury(self: &Arc<Self>, id: &PodId) {
        let Ok(Some(pod)) = self.pods.find(id.as_str()) else { return };
        for entry in self.containers_of(&pod.look()) {
            let record = entry.look();
            if let Ok(cgroup) = self.cgroup(&record.cgroup) {
                let killed = blocking(move || cgroup.kill_all(Duration::from_secs(10))).await;
                if let Err(error) = killed {
                    tracing::warn!(container = %record.id, error = crate::chain::chain(&error), "a process resists");
                }
            }
            if record.phase.pid().is_some() {
                let dir = self.layout.container(id, &record.id);
                self.exited(&record.id, last_words(&dir));
            }
        }
        let told = pod.update(&self.layout, |record| record.phase = PodPhase::NotReady);
        if let Err(error) = told {
            tracing::warn!(pod = %id, error = crate::chain::chain(&error), "the pod's end could not be recorded");
        }
    }
}

/// The exit that a shim wrote down before it died, or that it did not.
pub(super) fn last_words(dir: &Path) -> Exit {
    disk::read_json(&dir.join("exit.json")).ok().flatten().unwrap_or_else(|| Exit {
        code: LOST,
        at: SystemTime::now(),
        oom: false,
        trouble: Some(Trouble::Lost("the process that watched over the pod died".to_owned())),
    })
}
