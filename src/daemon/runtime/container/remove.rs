//! RemoveContainer: stops a container and removes all that was created for it.

use std::sync::Arc;
use std::time::Duration;

use model::{ContainerId, ErrorClass, ErrorKind};

use crate::runtime::cleanup::CleanupFailure;
use crate::runtime::lifecycle_steps::Step;
use crate::runtime::{LookupError, Runtime, StopError};
use crate::store::{ContainerRecord, Entry};

#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoveError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("stopping container {container} before its removal")]
    Stop { container: ContainerId, source: StopError },
    #[error("container {container} is only partly removed, will retry: {}", words(.left))]
    Left { container: ContainerId, left: Vec<CleanupFailure> },
}

impl ErrorClass for RemoveError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::Stop { source, .. } => source.kind(),
            Self::Left { .. } => ErrorKind::Internal,
        }
    }
}

/// Joins failed cleanup steps to one line.
pub(crate) fn words(left: &[CleanupFailure]) -> String {
    left.iter().map(|l| format!("{}: {}", l.step, l.error)).collect::<Vec<_>>().join("; ")
}

impl Runtime {
    /// Removes a container, running or not; a missing one is not an error. Holds the locks of the
    /// container and of its resources. If the cleanup fails, the container stays listed, and the
    /// daemon retries.
    pub(crate) async fn remove(self: &Arc<Self>, id: &str) -> Result<(), RemoveError> {
        match self.container_entry(id) {
            Ok(entry) => self.remove_entry(&entry).await,
            Err(LookupError::NoSuchContainer(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn remove_entry(self: &Arc<Self>, entry: &Arc<Entry<ContainerRecord>>) -> Result<(), RemoveError> {
        let _lock = entry.lock().await;
        if !self.containers.has(entry) {
            return Ok(());
        }
        let record = entry.get();
        let container = record.id.clone();
        self.stop_entry(entry, Duration::ZERO)
            .await
            .map_err(|source| RemoveError::Stop { container: container.clone(), source })?;
        // A resize in progress writes to the directory that is removed.
        let _resources_lock = entry.lock_resources().await;
        self.at_step(&Step::RemoveContainer(&record));
        let left = self.cleanup_container(&record.pod, &container).await;
        if !left.is_empty() {
            return Err(RemoveError::Left { container, left });
        }
        self.containers.remove(container.as_str());
        self.publish_container_removed(&record);
        self.resizes.forget(container.as_str());
        self.refused_shrinks.forget(container.as_str());
        self.container_names.release(&(record.pod.clone(), record.spec.meta.clone()), container.as_str());
        Ok(())
    }
}
