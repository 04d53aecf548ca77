//! ReopenContainerLog: continues the log of a container in a new file.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use model::{ErrorClass, ErrorKind};
use safe_fs::log_file::{LogError, open_log};
use shim_protocol::LogPath;

use crate::runtime::stream::running::NotRunning;
use crate::runtime::{LookupError, Runtime, blocking};
use crate::sandbox_client::SandboxError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReopenError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
    #[error(transparent)]
    Open(#[from] LogError),
    #[error("sending the new log file of the container to the pod's shim")]
    Shim(#[from] SandboxError),
}

impl ErrorClass for ReopenError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::NotRunning(e) => e.kind(),
            Self::Open(e) => e.kind(),
            Self::Shim(e) => e.kind(),
        }
    }
}

impl Runtime {
    /// Continues the log of a running container in a new file at the same path. A container without
    /// a log has nothing to reopen. Takes no lock: the shim refuses a second request while the
    /// first is in progress.
    pub(crate) async fn reopen_log(self: &Arc<Self>, id: &str) -> Result<(), ReopenError> {
        let record = self.running(id)?;
        let pod = self.pod(record.pod.as_str())?;
        let (Some(directory), Some(path)) = (&pod.spec.log_directory, &record.spec.log_path) else { return Ok(()) };
        let sandbox = self.sandbox_of(&record.pod).ok_or_else(|| NotRunning::Pod(record.id.clone()))?;
        let log = LogPath { directory: directory.clone(), file: path.clone() };
        if sandbox.opens_paths() {
            return Ok(sandbox.reopen_log(record.id.clone(), Some(log), None).await?);
        }
        let file = blocking(move || open_log(&log.directory, &log.file)).await?;
        Ok(sandbox.reopen_log(record.id.clone(), None, Some(file.as_fd())).await?)
    }
}
