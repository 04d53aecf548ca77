//! Notices of a resize to the program in a container, if its pod selects them: a file, a signal, a hook.
//!
//! They are sent by tasks of their own after the resize has ended, so that no container delays a resize or another
//! container's notice.

pub(crate) mod file;
mod queue;
pub(crate) mod selection;

use std::sync::Arc;
use std::time::Duration;

use config::SelectedNotices;
use model::error_chain::chain;
use model::{ContainerId, Signal};
use safe_fs::FileError;

pub(crate) use queue::{NoticeKind, ResizeNotices};

use super::finished::FinishedResize;
use crate::runtime::lookup::LookupError;
use crate::runtime::pod::handler::HandlerMissing;
use crate::runtime::stream::exec_sync::ExecError;
use crate::runtime::stream::running::NotRunning;
use crate::runtime::{Runtime, blocking};
use crate::sandbox_client::SandboxError;
use crate::store::{ContainerRecord, PodRecord};

/// The time for a hook, and for the shim to send a signal.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A notice that was not sent.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error(transparent)]
    Disk(#[from] FileError),
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
    #[error("sending the signal by the pod's shim")]
    Signal(#[from] SandboxError),
    #[error("the pod's shim did not respond within {TIMEOUT:?}")]
    Timeout,
    #[error("running resize_hook in the container")]
    Hook(#[from] ExecError),
    #[error("resize_hook exited with code {0}")]
    HookCode(i32),
}

/// A notice that the configuration no longer allows.
#[derive(Debug, thiserror::Error)]
enum SelectError {
    #[error(transparent)]
    Handler(#[from] HandlerMissing),
    #[error(transparent)]
    Notice(#[from] selection::NoticeError),
}

impl Runtime {
    /// Returns the deliveries of notices, with their counts.
    pub(crate) fn resize_notices(&self) -> &ResizeNotices {
        &self.notices
    }

    /// Queues the notices of an applied resize, if the pod selects any.
    pub(super) fn queue_notices(&self, resize: &FinishedResize) {
        let Some(container) = resize.target.container.as_ref().filter(|_| !resize.files.is_empty()) else { return };
        let pod = self.pod(resize.target.pod.as_str());
        if pod.is_ok_and(|pod| selection::selects(&pod.spec, &container.name)) {
            self.notices.add(&container.id);
        }
    }

    /// Sends the queued notices.
    pub(in crate::runtime) fn send_queued_notices(self: &Arc<Self>) {
        let (runtime, notices) = (Arc::downgrade(self), Arc::clone(&self.notices));
        tokio::spawn(async move {
            loop {
                notices.added.notified().await;
                for id in notices.begin() {
                    let Some(runtime) = runtime.upgrade() else { return };
                    tokio::spawn(async move {
                        runtime.send_notices(&id).await;
                        runtime.notices.end(&id);
                    });
                }
            }
        });
    }

    /// Sends the notices of a container with its present limits.
    async fn send_notices(self: &Arc<Self>, id: &ContainerId) {
        // Removed or ended meanwhile.
        let Ok(container) = self.container(id.as_str()) else { return };
        let Ok(pod) = self.pod(container.pod.as_str()) else { return };
        if container.state.pid().is_none() {
            return;
        }
        let selected = self.selected_notices(&pod, &container);
        let SelectedNotices { file, signal, hook } = match selected {
            Ok(selected) => selected,
            Err(error) => return warn(&pod, &container, None, &error),
        };
        // The file first: the others make the program read it.
        if file {
            let (runtime, owner) = (Arc::clone(self), Arc::clone(&container));
            let sent = blocking(move || runtime.write_notice(&owner)).await;
            self.note_notice(&pod, &container, NoticeKind::File, sent);
        }
        if let Some(signal) = signal {
            let sent = self.signal_notice(id, signal).await;
            self.note_notice(&pod, &container, NoticeKind::Signal, sent);
        }
        if let Some(hook) = hook {
            let sent = self.hook_notice(id, hook).await;
            self.note_notice(&pod, &container, NoticeKind::Hook, sent);
        }
    }

    /// Returns what the pod selects and its handler still allows.
    fn selected_notices(&self, pod: &PodRecord, container: &ContainerRecord) -> Result<SelectedNotices, SelectError> {
        let handler = self.handler(pod)?;
        Ok(selection::selected(&pod.spec, &container.spec.meta.name, &handler)?)
    }

    fn write_notice(&self, container: &ContainerRecord) -> Result<(), SendError> {
        let (_, limits) = self.container_snapshot(container.id.as_str())?;
        // Without a cgroup the container has ended.
        let Some(limits) = limits else { return Ok(()) };
        let dir = self.layout.container(&container.pod, &container.id).join(file::DIR);
        Ok(file::write(&dir, &limits.observed)?)
    }

    /// The shim sends the signal to its own child, so no other process can get it. One that waits for StartContainer
    /// gets none, since it would end.
    async fn signal_notice(&self, id: &ContainerId, signal: Signal) -> Result<(), SendError> {
        let (_, sandbox) = self.running_in_sandbox(id.as_str())?;
        let sending = sandbox.signal_container(id.clone(), signal);
        Ok(tokio::time::timeout(TIMEOUT, sending).await.map_err(|_| SendError::Timeout)??)
    }

    async fn hook_notice(self: &Arc<Self>, id: &ContainerId, hook: Vec<String>) -> Result<(), SendError> {
        match self.exec_sync(id.as_str(), hook, Some(TIMEOUT)).await?.code {
            0 => Ok(()),
            code => Err(SendError::HookCode(code)),
        }
    }

    fn note_notice(
        &self,
        pod: &PodRecord,
        container: &ContainerRecord,
        kind: NoticeKind,
        outcome: Result<(), SendError>,
    ) {
        self.notices.count(kind, outcome.is_ok());
        if let Err(error) = outcome {
            warn(pod, container, Some(kind), &error);
        }
    }
}

fn warn(pod: &PodRecord, container: &ContainerRecord, kind: Option<NoticeKind>, error: &dyn std::error::Error) {
    let meta = &pod.spec.meta;
    tracing::warn!(
        namespace = meta.namespace,
        pod = meta.name,
        uid = meta.uid,
        container = container.spec.meta.name,
        id = %container.id,
        notice = kind.map(NoticeKind::name),
        error = chain(error),
        "the container was resized, and cannot get its notice of it"
    );
}
