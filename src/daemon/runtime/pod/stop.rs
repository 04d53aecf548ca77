//! StopPodSandbox: stops the containers of a pod, then disconnects its network and ends its shim.
//!
//! It holds the lock of the pod, and ends a CreateContainer that holds it. A repeated call continues where an earlier
//! one failed.

use std::sync::Arc;
use std::time::Duration;

use model::{ErrorClass, ErrorKind, PodState};
use tracing::Instrument as _;

use crate::runtime::lifecycle_steps::Step;
use crate::runtime::{LookupError, Runtime, StopError};
use crate::store::{Entry, PodRecord};

#[derive(Debug, thiserror::Error)]
pub(crate) enum StopPodError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("stopping a container of the pod")]
    Container(#[from] StopError),
}

impl ErrorClass for StopPodError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::Container(e) => e.kind(),
        }
    }
}

impl Runtime {
    /// Stops all containers of a pod, and ends its namespaces and its shim. Succeeds if the pod
    /// does not exist.
    pub(crate) async fn stop_pod(self: &Arc<Self>, id: &str) -> Result<(), StopPodError> {
        match self.pod_entry(id) {
            Ok(entry) => {
                let _waiting = entry.samples().ends.wait();
                let _turn = entry.lock().await;
                if self.pods.has(&entry) { self.stop_pod_entry(&entry).await } else { Ok(()) }
            }
            Err(LookupError::NoSuchPod(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Stops a pod whose lock the caller holds.
    pub(crate) async fn stop_pod_entry(self: &Arc<Self>, entry: &Arc<Entry<PodRecord>>) -> Result<(), StopPodError> {
        let pod = entry.get();
        for container in self.containers_of(&pod.id) {
            let names = self.container_record_span(&container.get());
            self.stop_entry(&container, Duration::ZERO).instrument(names).await?;
        }
        if pod.state != PodState::NotReady {
            self.at_step(&Step::StopPod(&pod));
        }
        // While the network namespace exists, as plugins expect.
        self.disconnect(&pod.id).instrument(tracing::debug_span!("network.disconnect")).await;
        if pod.state != PodState::NotReady {
            self.end_shim(&pod.id).await;
        }
        let dir = self.pod_dir(&pod.id);
        // Failures are retried when the pod is removed.
        drop(crate::runtime::blocking_stop(move || crate::runtime::cleanup::unmount_all(&dir)).await);
        if pod.state != PodState::NotReady {
            self.end_pod(entry);
        }
        Ok(())
    }
}
