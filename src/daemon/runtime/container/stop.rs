//! StopContainer: terminates the processes of a container.

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

/// How long the daemon waits for the exit event of a shim after the kernel reported the exit.
const EXIT_EVENT_WITHIN: Duration = Duration::from_secs(1);
/// How often the kernel is queried for the exit of a process without a shim.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub(crate) enum StopError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("processes of container {container} are still running after SIGKILL")]
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
    /// Sends the stop signal, waits for `grace`, then kills; a missing or exited container is not
    /// an error. A container that was not started stays created, as with containerd and CRI-O.
    /// Takes no lock, so it also stops a container whose start is in progress.
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

    /// Stops a container. Succeeds if it has exited.
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

    /// Sends the stop signal and waits up to `grace`. Returns whether the container has exited.
    async fn terminate(&self, entry: &Entry<ContainerRecord>, record: &ContainerRecord, grace: Duration) -> bool {
        if matches!(record.state, ContainerState::Running { .. }) && !grace.is_zero() {
            let is_sent = self.signal(record, record.stop_signal).await;
            let process = if is_sent { None } else { self.signal_without_shim(record) };
            let exited = tokio::select! {
                exited = tokio::time::timeout(grace, entry.wait_until(has_exited)) => exited,
                // Without a shim no event comes. A slow shim gets this time to report the exit
                // code.
                () = wait_for_exit(process) => tokio::time::timeout(EXIT_EVENT_WITHIN, entry.wait_until(has_exited)).await,
            };
            return exited.is_ok();
        }
        false
    }

    /// Kills all processes in the container's cgroup. The kernel decides when it has exited: a shim
    /// that is dead, silent or of an unsupported release cannot keep a container running, or
    /// recorded as running.
    async fn kill(self: &Arc<Self>, entry: &Arc<Entry<ContainerRecord>>) -> Result<(), StopError> {
        let record = entry.get();
        if has_exited(&record) {
            return Ok(());
        }
        let is_sent = self.signal(&record, Signal::KILL).await;
        let container = record.id.clone();
        let cgroup = self.cgroup(&record.cgroup);
        let wait = self.settings().stop.kill_wait;
        let emptied = blocking_stop(move || cgroup.kill_all(wait)).await;
        if is_sent && tokio::time::timeout(wait, entry.wait_until(has_exited)).await.is_ok() {
            return Ok(());
        }
        emptied.map_err(|source| StopError::Stuck { container: container.clone(), source })?;
        self.exited(&container, recorded_exit_or_lost(&self.layout.container(&record.pod, &container)));
        Ok(())
    }

    /// Returns whether the shim sent the signal, so that it will report the exit.
    async fn signal(&self, record: &ContainerRecord, signal: Signal) -> bool {
        let Some(sandbox) = self.sandbox_of(&record.pod) else { return false };
        let sent = sandbox.signal_container(record.id.clone(), signal).await;
        if let Err(error) = &sent {
            tracing::warn!(container = %record.id, %signal, error = chain(error), "the pod's shim did not send the stop signal to the container; the daemon signals it without the shim");
        }
        sent.is_ok()
    }

    /// Sends the stop signal without the shim, to the first process, if that is in the container's
    /// cgroup. Returns a descriptor to wait for its exit, also if it has exited.
    fn signal_without_shim(&self, record: &ContainerRecord) -> Option<OwnedFd> {
        let pid = record.state.pid()?;
        let number = i32::try_from(pid.get()).ok().and_then(Pid::from_raw)?;
        let signal = rustix::process::Signal::from_named_raw(record.stop_signal.number())?;
        let cgroup = self.cgroup(&record.cgroup);
        // Opened first: another process may get the pid while its cgroup is checked.
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

/// Waits for the exit of a process; without one, forever.
async fn wait_for_exit(process: Option<OwnedFd>) {
    let Some(process) = process else { return std::future::pending().await };
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    while !poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&at_once)).is_ok_and(|ended| ended > 0) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
