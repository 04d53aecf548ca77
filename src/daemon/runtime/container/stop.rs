//! StopContainer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use model::error_chain::chain;
use model::{ContainerId, ContainerState, ErrorClass, ErrorKind, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use crate::runtime::lifecycle_steps::Step;
use crate::runtime::shim_monitor::recorded_exit_or_lost;
use crate::runtime::{LookupError, Runtime, blocking_stop};
use crate::store::{ContainerRecord, Entry};

/// How long a shim that was silent may take to tell of an end that the kernel knows of.
const TELL_WITHIN: Duration = Duration::from_secs(1);
/// How often the kernel is asked whether a process has ended that no shim tells of.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub(crate) enum StopError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("container {container} is still there after it was killed")]
    Stuck { container: ContainerId, source: cgroup::CgroupError },
}

impl ErrorClass for StopError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::Stuck { .. } => ErrorKind::Deadline,
        }
    }
}

pub(crate) fn has_exited(record: &ContainerRecord) -> bool {
    match record.state {
        ContainerState::Exited { .. } => true,
        ContainerState::Created { .. } | ContainerState::Running { .. } => false,
    }
}

impl Runtime {
    /// Asks the container to end, waits for `grace`, then ends it. One that does not exist, or has ended, is stopped. One that
    /// was not started yet stays as it is and can still be started, as with containerd and CRI-O.
    pub(crate) async fn stop(self: &Arc<Self>, id: &str, grace: Duration) -> Result<(), StopError> {
        let entry = match self.container_entry(id) {
            Ok(entry) => entry,
            Err(LookupError::NoSuchContainer(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if matches!(entry.get().state, ContainerState::Created { .. }) && !entry.samples().reported.is_starting() {
            return Ok(());
        }
        self.stop_entry(&entry, grace.min(self.settings().stop.grace_max)).await
    }

    /// Stops a container. One that has ended is stopped.
    pub(crate) async fn stop_entry(
        self: &Arc<Self>,
        entry: &Arc<Entry<ContainerRecord>>,
        grace: Duration,
    ) -> Result<(), StopError> {
        let record = entry.get();
        if has_exited(&record) {
            return Ok(());
        }
        if !self.terminate(entry, &record, grace).await {
            self.kill(entry).await?;
        }
        self.at_step(&Step::StopContainer(&record));
        Ok(())
    }

    /// Sends the stop signal and waits up to `grace`. Returns whether the container has ended.
    async fn terminate(&self, entry: &Entry<ContainerRecord>, record: &ContainerRecord, grace: Duration) -> bool {
        if matches!(record.state, ContainerState::Running { .. }) && !grace.is_zero() {
            let heard = self.signal(record, record.stop_signal).await;
            let process = if heard { None } else { self.signal_without_shim(record) };
            let told = tokio::select! {
                told = tokio::time::timeout(grace, entry.wait_until(has_exited)) => told,
                // Nobody else may tell of it. A shim that is merely slow gets a moment to say how.
                () = wait_for_exit(process) => tokio::time::timeout(TELL_WITHIN, entry.wait_until(has_exited)).await,
            };
            return told.is_ok();
        }
        false
    }

    /// Ends everything in the container's cgroup, now. What the kernel says counts: a shim that is missing, silent or of
    /// another time keeps no container alive, and none in the books.
    async fn kill(self: &Arc<Self>, entry: &Arc<Entry<ContainerRecord>>) -> Result<(), StopError> {
        let record = entry.get();
        if has_exited(&record) {
            return Ok(());
        }
        let heard = self.signal(&record, Signal::KILL).await;
        let container = record.id.clone();
        let cgroup = self.cgroup(&record.cgroup);
        let wait = self.settings().stop.kill_wait;
        let emptied = blocking_stop(move || cgroup.kill_all(wait)).await;
        if heard && tokio::time::timeout(wait, entry.wait_until(has_exited)).await.is_ok() {
            return Ok(());
        }
        emptied.map_err(|source| StopError::Stuck { container: container.clone(), source })?;
        self.exited(&container, recorded_exit_or_lost(&self.layout.container(&record.pod, &container)));
        Ok(())
    }

    /// Whether the shim sent the signal, so that it will tell of the container's end.
    async fn signal(&self, record: &ContainerRecord, signal: Signal) -> bool {
        let Some(sandbox) = self.sandbox_of(&record.pod) else { return false };
        let sent = sandbox.signal_container(record.id.clone(), signal).await;
        if let Err(error) = &sent {
            tracing::warn!(container = %record.id, %signal, error = chain(error), "the shim did not send a signal");
        }
        sent.is_ok()
    }

    /// Sends the stop signal without the shim, to the first process, if that is still one of the container's. Its end, or
    /// that it has ended, can be waited for.
    fn signal_without_shim(&self, record: &ContainerRecord) -> Option<OwnedFd> {
        let pid = record.state.pid()?;
        let number = i32::try_from(pid.get()).ok().and_then(Pid::from_raw)?;
        let signal = rustix::process::Signal::from_named_raw(record.stop_signal.number())?;
        let cgroup = self.cgroup(&record.cgroup);
        // Opened first: the number cannot pass to another while it is looked for.
        let process = pidfd_open(number, PidfdFlags::empty()).ok()?;
        let all = cgroup.procs().ok()?;
        if all.contains(&pid) {
            pidfd_send_signal(&process, signal).ok();
        } else if !all.is_empty() {
            return None;
        }
        Some(process)
    }
}

/// Waits for the end of a process; without one, for ever.
async fn wait_for_exit(process: Option<OwnedFd>) {
    let Some(process) = process else { return std::future::pending().await };
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    while !poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&at_once)).is_ok_and(|ended| ended > 0) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
