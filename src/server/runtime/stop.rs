//! StopContainer.

use std::sync::Arc;
use std::time::Duration;

use link::Ask;
use model::{Classed, ContainerId, Kind, Phase, Signal};

use super::{LookError, Runtime, blocking};
use crate::shim::AskError;
use crate::store::{ContainerRecord, Entry};

#[derive(Debug, thiserror::Error)]
pub(crate) enum StopError {
    #[error(transparent)]
    Look(#[from] LookError),
    #[error("sending {signal} to container {container}")]
    Signal { container: ContainerId, signal: Signal, source: AskError },
    #[error("container {container} is still there {after:?} after it was killed")]
    Stuck { container: ContainerId, after: Duration },
}

impl Classed for StopError {
    fn kind(&self) -> Kind {
        match self {
            Self::Look(e) => e.kind(),
            Self::Signal { source, .. } => source.kind(),
            Self::Stuck { .. } => Kind::Deadline,
        }
    }
}

fn is_over(record: &ContainerRecord) -> bool {
    match record.phase {
        Phase::Exited { .. } | Phase::Unknown { .. } => true,
        Phase::Created { .. } | Phase::Running { .. } => false,
    }
}

impl Runtime {
    /// Asks the container to end, waits for `grace`, then ends it. One that does not exist, or has ended, is stopped.
    pub(crate) async fn stop(self: &Arc<Self>, id: &str, grace: Duration) -> Result<(), StopError> {
        let entry = match self.container_entry(id) {
            Ok(entry) => entry,
            Err(LookError::NoSuchContainer(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let grace = grace.min(self.config.stop.grace_max);
        let record = entry.look();
        if matches!(record.phase, Phase::Running { .. }) && !grace.is_zero() {
            self.signal(&record, record.stop_signal).await?;
            if tokio::time::timeout(grace, entry.wait_until(is_over)).await.is_ok() {
                return Ok(());
            }
        }
        self.kill(&entry).await
    }

    /// Ends everything in the container's cgroup, now.
    pub(super) async fn kill(self: &Arc<Self>, entry: &Arc<Entry<ContainerRecord>>) -> Result<(), StopError> {
        let record = entry.look();
        if is_over(&record) {
            return Ok(());
        }
        let foreign = match self.signal(&record, Signal::KILL).await {
            Err(StopError::Signal { source: AskError::Foreign { .. }, .. }) => true,
            other => other.map(|()| false)?,
        };
        if let Ok(cgroup) = self.cgroup(&record.cgroup) {
            let wait = self.config.stop.kill_wait;
            // A process that cannot be killed shows below: the container does not end.
            blocking(move || cgroup.kill_all(wait)).await.ok();
        }
        if foreign {
            // A shim of another time may not tell, but it writes down what it saw.
            let dir = self.layout.container(&record.pod, &record.id);
            self.exited(&record.id, super::watch::last_words(&dir));
        }
        let after = self.config.stop.kill_wait;
        let ended = tokio::time::timeout(after, entry.wait_until(is_over)).await;
        ended.map_err(|_| StopError::Stuck { container: record.id.clone(), after })
    }

    async fn signal(&self, record: &ContainerRecord, signal: Signal) -> Result<(), StopError> {
        let Some(shim) = self.shim_of(&record.pod) else { return Ok(()) };
        let ask = Ask::Signal { container: record.id.clone(), signal: signal.number() };
        match shim.tell(ask).await {
            // Its end is on the way, or it is buried with its shim.
            Ok(()) | Err(AskError::Gone) => Ok(()),
            Err(source) => Err(StopError::Signal { container: record.id.clone(), signal, source }),
        }
    }
}
