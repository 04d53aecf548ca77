//! Handles events of shims: exits of containers, and of the shims themselves.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::error_chain::chain;
use model::{AbnormalExit, ContainerId, ContainerState, Exit, PodId, PodState};
use shim_protocol::Event;
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::cleanup::unmount_all;
use super::{Runtime, blocking_stop};
use crate::sandbox_client::{SandboxClient, SandboxError, SandboxEvent};
use crate::store::{ContainerRecord, Entry, PodRecord};

/// The exit code of a container whose exit was not observed.
const LOST: i32 = 255;
/// The pauses between attempts to connect to a shim.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

impl Runtime {
    /// Registers the connection to a pod's shim, and handles its events.
    pub(super) fn attach(
        self: &Arc<Self>,
        pod: PodId,
        sandbox: SandboxClient,
        mut events: mpsc::UnboundedReceiver<SandboxEvent>,
    ) {
        self.sandboxes.lock().insert(pod.clone(), sandbox);
        let runtime = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                let Some(runtime) = runtime.upgrade() else { return };
                match event {
                    SandboxEvent::Event(Event::Exited { container, exit }) => runtime.exited(&container, exit),
                    SandboxEvent::Event(Event::LogLost { container, bytes, error }) => {
                        runtime.log_bytes_lost.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
                        let _names = runtime.container_span(&pod, &container).entered();
                        tracing::warn!(bytes, error, "container output is lost: cannot write the container's log file");
                    }
                    // The shim client delivers it to the caller that waits.
                    SandboxEvent::Event(Event::ExecExited { .. }) => {}
                    SandboxEvent::Gone => {
                        let names = runtime.pod_span(&pod);
                        return runtime.shim_gone(&pod).instrument(names).await;
                    }
                }
            }
        });
    }

    pub(super) fn exited(&self, id: &ContainerId, exit: Exit) {
        let Ok(Some(entry)) = self.containers.find(id.as_str()) else { return };
        self.change_state(&entry, |phase| phase.exit(exit));
    }

    /// Changes the state of a container. If the record cannot be written, the next daemon queries
    /// the shim.
    pub(super) fn change_state(
        &self,
        entry: &Entry<ContainerRecord>,
        change: impl FnOnce(&ContainerState) -> ContainerState,
    ) {
        let ran = entry.get().state.pid().is_some();
        let mut ended = false;
        let recorded = entry.update(&self.layout, |record| {
            let had_process = record.state.pid().is_some();
            record.state = change(&record.state);
            ended = had_process && record.state.pid().is_none();
        });
        if let Err(error) = recorded {
            let _names = self.container_record_span(&entry.get()).entered();
            tracing::warn!(
                error = chain(&error),
                "cannot write the state of a container to its record; the next daemon queries the shim instead"
            );
        }
        let record = entry.get();
        if ran
            && let ContainerState::Exited { exit, .. } = &record.state
            && exit.oom
        {
            self.note_oom_exit(&record, exit.at);
        }
        if entry.get().state.pid().is_none() {
            entry.samples().files.close();
        }
        if ended {
            self.count_exit(entry);
            self.log_exit(entry);
        }
        self.release_if_ended(entry);
        self.publish_container_events(entry);
    }

    /// Releases the limits of an exited container, so that they do not bind the pod's cgroup; the
    /// cgroup and its statistics remain until the removal.
    ///
    /// Called after every change of the state and of the limits, because either may come last.
    pub(super) fn release_if_ended(&self, entry: &Entry<ContainerRecord>) {
        let record = entry.get();
        if record.state.pid().is_some() {
            return;
        }
        if let Err(error) = self.cgroup_of(entry).release_parent() {
            let _names = self.container_record_span(&record).entered();
            tracing::warn!(
                error = chain(&error),
                "cannot release the limits of an exited container; they still bind the pod's cgroup"
            );
        }
    }

    /// Handles a connection that the shim closed.
    async fn shim_gone(self: &Arc<Self>, id: &PodId) {
        let expected = self.sandboxes.lock().remove(id).is_none();
        if !expected {
            self.reconnect_shim(id).await;
        }
    }

    /// Connects to the shim of a pod, and retries until the pod is stopped. If the shim is dead,
    /// the pod is stopped.
    pub(super) async fn reconnect_shim(self: &Arc<Self>, id: &PodId) {
        let mut pause = FIRST_PAUSE;
        while let Ok(Some(pod)) = self.pods.find(id.as_str())
            && pod.get().state != PodState::NotReady
        {
            match self.connect_shim(id).await {
                Ok(()) => return,
                Err(error) if error.is_dead() => {
                    tracing::warn!("the pod's shim exited; stopping its containers");
                    return self.handle_shim_death(id).await;
                }
                Err(error) => {
                    let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                    tracing::warn!(error = chain(&error), pause_ms, "cannot connect to the pod's shim; will retry");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Connects once to the shim of a pod whose record cannot be read. Another release may have the
    /// shim elsewhere, so a failure changes nothing.
    pub(super) async fn find_shim_of_unreadable(self: &Arc<Self>, id: &PodId) {
        if let Err(error) = self.connect_shim(id).await {
            tracing::warn!(
                error = chain(&error),
                "cannot connect to the pod's shim; exits of its containers will not be reported"
            );
        }
    }

    async fn connect_shim(self: &Arc<Self>, id: &PodId) -> Result<(), SandboxError> {
        let (sender, events) = mpsc::unbounded_channel();
        let sandbox = SandboxClient::connect(&self.pod_dir(id), sender).await?;
        self.sync_from_sandbox(id, &sandbox).await?;
        self.attach(id.clone(), sandbox, events);
        Ok(())
    }

    /// Updates containers from a shim. A container that the shim does not have has exited; an
    /// incompatible shim cannot be queried, but records exits in files.
    async fn sync_from_sandbox(&self, pod: &PodId, sandbox: &SandboxClient) -> Result<(), SandboxError> {
        let mut reported: Option<HashMap<ContainerId, ContainerState>> = match sandbox.state().await {
            Ok(containers) => Some(containers.into_iter().map(|report| (report.container, report.state)).collect()),
            Err(SandboxError::Foreign { .. }) => None,
            Err(error) => return Err(error),
        };
        for entry in self.containers_of(pod) {
            let record = entry.get();
            let dir = self.layout.container(pod, &record.id);
            let latest = match reported.as_mut().map(|all| all.remove(&record.id)) {
                Some(Some(phase)) => Some(phase),
                Some(None) => Some(record.state.exit(recorded_exit_or_lost(&dir))),
                None => recorded_exit(&dir).map(|exit| record.state.exit(exit)),
            };
            if let Some(latest) = latest
                && record.state.pid().is_some()
            {
                self.change_state(&entry, |known| merge_state(known, latest));
            }
        }
        Ok(())
    }

    /// Kills what remains of a pod whose shim exited, and records the pod and its containers as
    /// stopped: without a shim, exits would not be observed. The client creates a new pod.
    pub(super) async fn handle_shim_death(self: &Arc<Self>, id: &PodId) {
        let Ok(Some(pod)) = self.pods.find(id.as_str()) else { return };
        let _waiting = pod.samples().ends.wait();
        let _turn = pod.lock().await;
        if !self.pods.has(&pod) {
            return;
        }
        self.end_shim(id).await;
        for entry in self.containers_of(id) {
            let record = entry.get();
            let cgroup = self.cgroup(&record.cgroup);
            let wait = self.settings().stop.kill_wait;
            if let Err(error) = blocking_stop(move || cgroup.kill_all(wait)).await {
                let _names = self.container_record_span(&record).entered();
                tracing::warn!(
                    error = chain(&error),
                    "a process of the container is still alive after SIGKILL; the container is recorded as exited"
                );
            }
            if record.state.pid().is_some() {
                self.exited(&record.id, recorded_exit_or_lost(&self.layout.container(id, &record.id)));
            }
        }
        self.disconnect(id).await;
        let dir = self.pod_dir(id);
        // Failures are retried when the pod is removed.
        drop(blocking_stop(move || unmount_all(&dir)).await);
        self.end_pod(&pod);
    }

    /// Records a pod as stopped. If the record cannot be written, the next daemon finds its shim
    /// dead.
    pub(super) fn end_pod(&self, pod: &Entry<PodRecord>) {
        if let Err(error) = pod.update(&self.layout, PodRecord::stop) {
            tracing::warn!(
                error = chain(&error),
                "cannot write to the pod's record that the pod has stopped; the daemon's next start detects it"
            );
        }
        self.publish_pod_events(pod);
    }
}

/// Merges the known state of a container with the reported one.
fn merge_state(known: &ContainerState, latest: ContainerState) -> ContainerState {
    match (known, latest) {
        // A recorded exit and a recorded start are final.
        (ContainerState::Exited { .. }, _) | (ContainerState::Running { .. }, ContainerState::Running { .. }) => {
            known.clone()
        }
        (ContainerState::Running { .. }, ContainerState::Exited { exit, .. }) => known.exit(exit),
        (_, latest) => latest,
    }
}

/// Reads the exit that the shim recorded.
pub(super) fn recorded_exit(dir: &Path) -> Option<Exit> {
    safe_fs::read_json(&dir.join("exit.json")).ok().flatten()
}

/// Reads the exit that the shim recorded, or returns one that was not observed.
pub(super) fn recorded_exit_or_lost(dir: &Path) -> Exit {
    recorded_exit(dir).unwrap_or_else(|| Exit {
        code: LOST,
        at: SystemTime::now(),
        oom: false,
        abnormal: Some(AbnormalExit::Lost("the pod's shim exited before the container".to_owned())),
    })
}
