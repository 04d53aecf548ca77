//! Checks that a container runs, for exec and attach.

use std::sync::Arc;

use model::{ContainerId, ContainerState, ErrorClass, ErrorKind};

use crate::runtime::{LookupError, Runtime};
use crate::sandbox_client::SandboxClient;
use crate::store::ContainerRecord;

/// A container in which no command can be executed, and whose streams nothing can be attached to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotRunning {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("container {container} is {state}, not running: exec, attach and ReopenContainerLog require a running one")]
    State { container: ContainerId, state: &'static str },
    #[error("cannot exec in, attach to or reopen the log of container {0}: its pod is not ready")]
    Pod(ContainerId),
}

impl ErrorClass for NotRunning {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Lookup(e) => e.kind(),
            Self::State { .. } | Self::Pod(_) => ErrorKind::Precondition,
        }
    }
}

/// A container to which no client can attach.
#[derive(Debug, thiserror::Error)]
#[error("cannot attach to the container")]
pub(crate) struct AttachError(#[source] NotRunning);

impl ErrorClass for AttachError {
    fn kind(&self) -> ErrorKind {
        self.0.kind()
    }
}

impl Runtime {
    /// Returns a container to which a client can attach.
    pub(crate) fn attachable(&self, id: &str) -> Result<Arc<ContainerRecord>, AttachError> {
        self.running(id).map_err(AttachError)
    }

    /// Returns a container that runs. It may exit at any time: the shim checks again.
    pub(crate) fn running(&self, id: &str) -> Result<Arc<ContainerRecord>, NotRunning> {
        let record = self.readable_container(id)?.get();
        match record.state {
            ContainerState::Running { .. } => Ok(record),
            ContainerState::Created { .. } | ContainerState::Exited { .. } => {
                Err(NotRunning::State { container: record.id.clone(), state: record.state.name() })
            }
        }
    }

    /// Returns a container that runs, and the sandbox of its pod.
    pub(in crate::runtime) fn running_in_sandbox(
        &self,
        id: &str,
    ) -> Result<(Arc<ContainerRecord>, SandboxClient), NotRunning> {
        let record = self.running(id)?;
        let sandbox = self.sandbox_of(&record.pod).ok_or_else(|| NotRunning::Pod(record.id.clone()))?;
        Ok((record, sandbox))
    }
}
