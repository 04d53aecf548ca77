//! Listening to the shims: containers end, and shims may.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::error_chain::chain;
use model::{AbnormalExit, ContainerId, ContainerState, Exit, PodId, PodState};
use shim_protocol::Event;
use tokio::sync::mpsc;

use super::cleanup::unmount_all;
use super::{Runtime, blocking_stop};
use crate::sandbox_client::{SandboxClient, SandboxError, SandboxEvent};
use crate::store::{ContainerRecord, Entry, PodRecord};

/// The exit code of a container whose end nobody saw.
const LOST: i32 = 255;
/// The pauses between two tries to reach a shim.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

impl Runtime {
    /// Takes a pod's shim into service.
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
                        tracing::warn!(%container, bytes, error, "cannot log container output; it is lost");
                    }
                    // The client of the shim hands it to the caller that waits for it.
                    SandboxEvent::Event(Event::ExecExited { .. }) => {}
                    SandboxEvent::Gone => return runtime.shim_gone(&pod).await,
                }
            }
        });
    }

    pub(super) fn exited(&self, id: &ContainerId, exit: Exit) {
        let Ok(Some(entry)) = self.containers.find(id.as_str()) else { return };
        self.change_state(&entry, |phase| phase.exit(exit));
    }

    /// Takes a container for what it is. Where that cannot be written down, the next daemon hears it from the shim.
    pub(super) fn change_state(
        &self,
        entry: &Entry<ContainerRecord>,
        change: impl FnOnce(&ContainerState) -> ContainerState,
    ) {
        if let Err(error) = entry.update(&self.layout, |record| record.state = change(&record.state)) {
            let container = &entry.get().id;
            tracing::warn!(%container, error = chain(&error), "cannot record the state of a container");
        }
        if entry.get().state.pid().is_none() {
            entry.samples().files.close();
        }
        self.release_if_ended(entry);
        self.publish_container_events(entry);
    }

    /// An ended container keeps its cgroup, and with it its statistics, until it is removed; its limits do not bind the pod's.
    ///
    /// To be called after whatever sets the state, and after whatever writes limits: the later of the two does the work.
    pub(super) fn release_if_ended(&self, entry: &Entry<ContainerRecord>) {
        let record = entry.get();
        if record.state.pid().is_some() {
            return;
        }
        if let Err(error) = self.cgroup(&record.cgroup).release_parent() {
            tracing::warn!(container = %record.id, error = chain(&error), "cannot release the limits of an exited container; they still bind the pod's cgroup");
        }
    }

    /// A connection ended that nobody here ended.
    async fn shim_gone(self: &Arc<Self>, id: &PodId) {
        let expected = self.sandboxes.lock().remove(id).is_none();
        if !expected {
            self.reconnect_shim(id).await;
        }
    }

    /// Reaches the shim of a pod and takes it into service, however often that has to be tried until the pod is stopped.
    /// One that is dead is buried.
    pub(super) async fn reconnect_shim(self: &Arc<Self>, id: &PodId) {
        let mut pause = FIRST_PAUSE;
        while let Ok(Some(pod)) = self.pods.find(id.as_str())
            && pod.get().state != PodState::NotReady
        {
            match self.connect_shim(id).await {
                Ok(()) => return,
                Err(error) if error.is_dead() => {
                    tracing::warn!(pod = %id, "the pod's shim exited; stopping its containers");
                    return self.handle_shim_death(id).await;
                }
                Err(error) => {
                    tracing::warn!(pod = %id, error = chain(&error), ?pause, "cannot connect to the pod's shim; will retry")
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The same for a pod whose record cannot be read, but only once: a shim that is not found where this release has it may be
    /// elsewhere, and is left as it is.
    pub(super) async fn find_shim_of_unreadable(self: &Arc<Self>, id: &PodId) {
        if let Err(error) = self.connect_shim(id).await {
            tracing::warn!(pod = %id, error = chain(&error), "cannot connect to the pod's shim; exits of its containers will not be reported");
        }
    }

    async fn connect_shim(self: &Arc<Self>, id: &PodId) -> Result<(), SandboxError> {
        let (sender, events) = mpsc::unbounded_channel();
        let sandbox = SandboxClient::connect(&self.pod_dir(id), sender).await?;
        self.sync_from_sandbox(id, &sandbox).await?;
        self.attach(id.clone(), sandbox, events);
        Ok(())
    }

    /// Learns from a shim what happened meanwhile. What a shim does not know of has ended; one of another time cannot
    /// be asked, but it writes down the ends it sees.
    async fn sync_from_sandbox(&self, pod: &PodId, sandbox: &SandboxClient) -> Result<(), SandboxError> {
        let mut reported: Option<HashMap<ContainerId, ContainerState>> = match sandbox.state().await {
            Ok(containers) => Some(containers.into_iter().map(|report| (report.container, report.state)).collect()),
            Err(SandboxError::Foreign { .. }) => None,
            Err(error) => return Err(error),
        };
        for entry in self.containers_of(pod) {
            let record = entry.get();
            let dir = self.layout.container(pod, &record.id);
            let told = match reported.as_mut().map(|all| all.remove(&record.id)) {
                Some(Some(phase)) => Some(phase),
                Some(None) => Some(record.state.exit(recorded_exit_or_lost(&dir))),
                None => recorded_exit(&dir).map(|exit| record.state.exit(exit)),
            };
            if let Some(told) = told
                && record.state.pid().is_some()
            {
                self.change_state(&entry, |known| merge_state(known, told));
            }
        }
        Ok(())
    }

    /// Marks a pod whose shim is dead, and its containers, as ended, after making it true. Without its shim a pod is
    /// nothing: nobody would see its containers end. The client makes a new one.
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
                tracing::warn!(container = %record.id, error = chain(&error), "process still alive after SIGKILL");
            }
            if record.state.pid().is_some() {
                self.exited(&record.id, recorded_exit_or_lost(&self.layout.container(id, &record.id)));
            }
        }
        self.disconnect(id).await;
        let dir = self.pod_dir(id);
        // What resists is tried again when the pod is removed.
        drop(blocking_stop(move || unmount_all(&dir)).await);
        self.end_pod(&pod);
    }

    /// Takes a pod for ended. Where that cannot be written down, the next daemon finds its shim dead.
    pub(super) fn end_pod(&self, pod: &Entry<PodRecord>) {
        if let Err(error) = pod.update(&self.layout, PodRecord::stop) {
            tracing::warn!(pod = %pod.get().id, error = chain(&error), "cannot record that the pod has stopped");
        }
        self.publish_pod_events(pod);
    }
}

/// What is true of a container that was `known` to be in one phase and is `told` to be in another.
fn merge_state(known: &ContainerState, told: ContainerState) -> ContainerState {
    match (known, told) {
        // What was told once stays: a start does not move.
        (ContainerState::Exited { .. }, _) | (ContainerState::Running { .. }, ContainerState::Running { .. }) => {
            known.clone()
        }
        (ContainerState::Running { .. }, ContainerState::Exited { exit, .. }) => known.exit(exit),
        (_, told) => told,
    }
}

/// The exit that a shim wrote down.
pub(super) fn recorded_exit(dir: &Path) -> Option<Exit> {
    safe_fs::read_json(&dir.join("exit.json")).ok().flatten()
}

/// The exit that a shim wrote down before it died, or that it did not.
pub(super) fn recorded_exit_or_lost(dir: &Path) -> Exit {
    recorded_exit(dir).unwrap_or_else(|| Exit {
        code: LOST,
        at: SystemTime::now(),
        oom: false,
        abnormal: Some(AbnormalExit::Lost("the pod's shim exited before the container".to_owned())),
    })
}
