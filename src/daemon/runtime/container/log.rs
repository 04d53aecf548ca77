//! ReopenContainerLog.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use model::{ContainerId, ContainerState, ErrorClass, ErrorKind};
use safe_fs::log_file::{LogError, open_log};
use shim_protocol::LogPath;

use crate::runtime::{LookupError, Runtime, blocking};
use crate::sandbox_client::SandboxError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReopenError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("container {0} is not running")]
    NotRunning(ContainerId),
    #[error(transparent)]
    Open(#[from] LogError),
    #[error("handing the log to the shim")]
    Shim(#[from] SandboxError),
}

impl ErrorClass for ReopenError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::NotRunning(_) => ErrorKind::Precondition,
            Self::Open(e) => e.kind(),
            Self::Shim(e) => e.kind(),
        }
    }
}

impl Runtime {
    pub(crate) async fn reopen_log(self: &Arc<Self>, id: &str) -> Result<(), ReopenError> {
        let record = self.readable_container(id)?.get();
        if !matches!(record.state, ContainerState::Running { .. }) {
            return Err(ReopenError::NotRunning(record.id.clone()));
        }
        let pod = self.pod(record.pod.as_str())?;
        let (Some(directory), Some(path)) = (&pod.spec.log_directory, &record.spec.log_path) else { return Ok(()) };
        let sandbox = self.sandbox_of(&record.pod).ok_or_else(|| ReopenError::NotRunning(record.id.clone()))?;
        let log = LogPath { directory: directory.clone(), file: path.clone() };
        if sandbox.opens_paths() {
            return Ok(sandbox.reopen_log(record.id.clone(), Some(log), None).await?);
        }
        let file = blocking(move || open_log(&log.directory, &log.file)).await?;
        Ok(sandbox.reopen_log(record.id.clone(), None, Some(file.as_fd())).await?)
    }
}
