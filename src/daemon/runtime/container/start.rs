//! StartContainer: executes the program of a created container.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::{ContainerId, ContainerState, ErrorClass, ErrorKind, WrongState};
use shim_protocol::ShimErrorKind;

use super::stop::has_exited;
use crate::runtime::lifecycle_steps::Step;
use crate::runtime::{LookupError, Runtime, blocking};
use crate::sandbox_client::SandboxError;
use crate::store::{ContainerRecord, Entry};

#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error(transparent)]
    Phase(#[from] WrongState),
    #[error("cannot start container {0}: its pod is not ready")]
    PodNotReady(ContainerId),
    #[error("failed to start container {container}")]
    Program { container: ContainerId, source: SandboxError },
    #[error("sending the start of container {container} to the pod's shim")]
    Shim { container: ContainerId, source: SandboxError },
}

impl ErrorClass for StartError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::Phase(_) | Self::PodNotReady(_) => ErrorKind::Precondition,
            // containerd reports Unknown: the request is valid, the container is not.
            Self::Program { .. } => ErrorKind::Internal,
            Self::Shim { source, .. } => source.kind(),
        }
    }
}

/// How long StartContainer waits for the exit event of a container that could not be started.
const EXIT_EVENT_WITHIN: Duration = Duration::from_secs(1);

impl Runtime {
    /// Executes the program of a created container. Holds the lock of the container. If the program
    /// cannot be executed, the container is exited, as with containerd: that is not undone.
    pub(crate) async fn start(self: &Arc<Self>, id: &str) -> Result<(), StartError> {
        let entry = self.readable_container(id)?;
        let _lock = entry.lock().await;
        if !self.containers.has(&entry) {
            return Err(LookupError::NoSuchContainer(id.to_owned()).into());
        }
        // Events are published afterwards: the exit may be recorded before the start.
        entry.samples().reported.starting(true);
        let started = self.start_entry(&entry).await;
        entry.samples().reported.starting(false);
        self.publish_container_events(&entry);
        started
    }

    /// The caller has the container's turn.
    async fn start_entry(self: &Arc<Self>, entry: &Entry<ContainerRecord>) -> Result<(), StartError> {
        let record = entry.get();
        record.state.start(SystemTime::now())?;
        let sandbox = self.sandbox_of(&record.pod).ok_or_else(|| StartError::PodNotReady(record.id.clone()))?;
        self.at_step(&Step::StartContainer(&record));
        let pod_resources = self.pod(record.pod.as_str()).is_ok_and(|pod| pod.spec.pod_resources.is_some());
        if pod_resources || record.spec.kubernetes_resources.is_some() {
            let (runtime, record) = (self.clone(), record.clone());
            blocking(move || runtime.refresh_resource_annotations(&record)).await;
        }
        if let Err(source) = sandbox.start_container(record.id.clone()).await {
            let container = record.id.clone();
            if !matches!(&source, SandboxError::Failed(failure) if failure.kind == ShimErrorKind::Program) {
                return Err(StartError::Shim { container, source });
            }
            // The exit arrives as an event: after this error, the client must not find the
            // container created.
            tokio::time::timeout(EXIT_EVENT_WITHIN, entry.wait_until(has_exited)).await.ok();
            return Err(StartError::Program { container, source });
        }
        let now = SystemTime::now();
        self.change_state(entry, |phase| match phase {
            // It may have exited before its start was recorded.
            ContainerState::Exited { started: None, exit } => {
                ContainerState::Exited { started: Some(now.min(exit.at)), exit: exit.clone() }
            }
            other => other.start(now).unwrap_or_else(|_| other.clone()),
        });
        Ok(())
    }
}
