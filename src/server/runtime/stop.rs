//! StopContainer.

use std::sync::Arc;
use std::time::Duration;

use link::Ask;
use model::{Classed, ContainerId, Kind, Phase, Signal};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use super::watch::last_words;
use super::{LookError, Runtime, blocking};
use crate::chain::chain;
use crate::store::{ContainerRecord, Entry};

#[derive(Debug, thiserror::Error)]
pub(crate) enum StopError {
    #[error(transparent)]
    Look(#[from] LookError),
    #[error("the cgroup of container {container}")]
    CgroupPath { container: ContainerId, source: cgroup::InvalidPath },
    #[error("container {container} is still there after it was killed")]
    Stuck { container: ContainerId, source: cgroup::GroupError },
}

impl Classed for StopError {
    fn kind(&self) -> Kind {
        match self {
            Self::Look(e) => e.kind(),
            Self::CgroupPath { .. } => Kind::Internal,
            Self::Stuck { .. } => Kind::Deadline,
        }
    }
}

pub(super) fn is_over(record: &ContainerRecord) -> bool {
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
        let grace = grace.min(self.settings().stop.grace_max);
        let record = entry.look();
        if matches!(record.phase, Phase::Running { .. }) && !grace.is_zero() {
            if !self.signal(&record, record.stop_signal).await {
                self.signal_past_the_shim(&record);
            }
            if tokio::time::timeout(grace, entry.wait_until(is_over)).await.is_ok() {
                return Ok(());
            }
        }
        self.kill(&entry).await
    }

    /// Ends everything in the container's cgroup, now. What the kernel says counts: a shim that is missing, silent or of
    /// another time keeps no container alive, and none in the books.
    pub(super) async fn kill(self: &Arc<Self>, entry: &Arc<Entry<ContainerRecord>>) -> Result<(), StopError> {
        let record = entry.look();
        if is_over(&record) {
            return Ok(());
        }
        let heard = self.signal(&record, Signal::KILL).await;
        let container = record.id.clone();
        let cgroup = self.cgroup(&record.cgroup);
        let cgroup = cgroup.map_err(|source| StopError::CgroupPath { container: container.clone(), source })?;
        let wait = self.settings().stop.kill_wait;
        let emptied = blocking(move || cgroup.kill_all(wait)).await;
        if heard && tokio::time::timeout(wait, entry.wait_until(is_over)).await.is_ok() {
            return Ok(());
        }
        emptied.map_err(|source| StopError::Stuck { container: container.clone(), source })?;
        self.exited(&container, last_words(&self.layout.container(&record.pod, &container)));
        Ok(())
    }

    /// Whether the shim sent the signal, so that it will tell of the container's end.
    async fn signal(&self, record: &ContainerRecord, signal: Signal) -> bool {
        let Some(shim) = self.shim_of(&record.pod) else { return false };
        let asked = shim.tell(Ask::Signal { container: record.id.clone(), signal: signal.number() }).await;
        if let Err(error) = &asked {
            tracing::warn!(container = %record.id, %signal, error = chain(error), "the shim did not send a signal");
        }
        asked.is_ok()
    }

    /// Sends the stop signal without the shim, to the first process, if that is still one of the container's.
    fn signal_past_the_shim(&self, record: &ContainerRecord) {
        let Some(pid) = record.phase.pid() else { return };
        let number = i32::try_from(pid.get()).ok().and_then(Pid::from_raw);
        let signal = rustix::process::Signal::from_named_raw(record.stop_signal.number());
        let (Some(number), Some(signal), Ok(cgroup)) = (number, signal, self.cgroup(&record.cgroup)) else { return };
        // Opened first: the number cannot pass to another while it is looked for.
        let Ok(process) = pidfd_open(number, PidfdFlags::empty()) else { return };
        if cgroup.procs().is_ok_and(|all| all.contains(&pid)) {
            pidfd_send_signal(&process, signal).ok();
        }
    }
}
