//! RemovePodSandbox: stops a pod, and removes its containers and all that was created for it.
//!
//! It holds the lock of the pod. If something cannot be removed, the record stays, so that the client can repeat the
//! call.

use std::sync::Arc;

use model::{ErrorClass, ErrorKind, PodId};
use tracing::Instrument as _;

use crate::runtime::cleanup::CleanupFailure;
use crate::runtime::container::remove::words;
use crate::runtime::lifecycle_steps::Step;
use crate::runtime::{LookupError, RemoveError, Runtime, StopPodError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum RemovePodError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("stopping pod {pod} before its removal")]
    Stop { pod: PodId, source: StopPodError },
    #[error("removing a container of pod {pod}")]
    Container { pod: PodId, source: RemoveError },
    #[error("pod {pod} is only partly removed, will retry: {}", words(.left))]
    Left { pod: PodId, left: Vec<CleanupFailure> },
}

impl ErrorClass for RemovePodError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::Stop { source, .. } => source.kind(),
            Self::Container { source, .. } => source.kind(),
            Self::Left { .. } => ErrorKind::Internal,
        }
    }
}

impl Runtime {
    /// Removes a pod with all its containers. Succeeds if the pod does not exist.
    pub(crate) async fn remove_pod(self: &Arc<Self>, id: &str) -> Result<(), RemovePodError> {
        let entry = match self.pod_entry(id) {
            Ok(entry) => entry,
            Err(LookupError::NoSuchPod(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let _waiting = entry.samples().ends.wait();
        let _turn = entry.lock().await;
        if !self.pods.has(&entry) {
            return Ok(());
        }
        let pod = entry.get();
        let id = pod.id.clone();
        self.stop_pod_entry(&entry).await.map_err(|source| RemovePodError::Stop { pod: id.clone(), source })?;
        for container in self.containers_of(&id) {
            let names = self.container_record_span(&container.get());
            let removed = self.remove_entry(&container).instrument(names).await;
            removed.map_err(|source| RemovePodError::Container { pod: id.clone(), source })?;
        }
        // A concurrent change writes into the directory.
        let _change = entry.lock_resources().await;
        self.at_step(&Step::RemovePod(&pod));
        let left = self.cleanup_pod(&id).await;
        if !left.is_empty() {
            return Err(RemovePodError::Left { pod: id, left });
        }
        self.pods.remove(id.as_str());
        self.publish_pod_removed(&entry.get());
        self.resizes.forget(id.as_str());
        self.level_files.close();
        self.history.forget(&id);
        self.pod_names.release(&pod.spec.meta, id.as_str());
        self.request_trim();
        Ok(())
    }
}
