//! Cleanup of a pod or container, whatever parts of it exist: after a failure, a crash, or a
//! removal.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use model::error_chain::chain;
use model::{ContainerId, PodId};
use nix::mount::{MntFlags, umount2};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::container::poststop_hooks;
use super::{Runtime, blocking, blocking_stop};
use crate::sandbox_client::{STOP_TIMEOUT, SandboxClient};
use crate::store::intent::INTENT_FILE;
use crate::store::{CgroupIntent, ContainerIntent};

/// A cleanup that is retried later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PendingCleanup {
    Pod(PodId),
    Container(PodId, ContainerId),
}

impl fmt::Display for PendingCleanup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => write!(f, "pod {pod}"),
            Self::Container(_, container) => write!(f, "container {container}"),
        }
    }
}

/// A cleanup step that failed; the daemon retries it later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CleanupFailure {
    pub(crate) step: String,
    pub(crate) error: String,
}

/// The time for killed processes to exit.
const KILL_WITHIN: Duration = Duration::from_secs(10);

/// Runs all steps, and collects their failures.
#[derive(Debug, Default)]
struct CleanupSteps(Vec<CleanupFailure>);

impl CleanupSteps {
    fn record<E: std::error::Error>(&mut self, step: &str, outcome: Result<(), E>) {
        if let Err(error) = outcome {
            let error = model::error_chain::chain(&error);
            self.0.push(CleanupFailure { step: step.to_owned(), error });
        }
    }
}

impl Runtime {
    /// Removes all of a container: processes, cgroup, directories, its use of image layers. Failed
    /// steps are retried later.
    pub(super) async fn cleanup_container(self: &Arc<Self>, pod: &PodId, id: &ContainerId) -> Vec<CleanupFailure> {
        let mut steps = CleanupSteps::default();
        if let Some(sandbox) = self.sandbox_of(pod) {
            // A missing shim has no container, and a hung one does not delay the cleanup: the
            // processes are killed through the cgroup too.
            sandbox.remove_container(id.clone()).await.ok();
        }
        let (runtime, dir, owner) = (self.clone(), self.layout.container(pod, id), id.clone());
        let left = blocking_stop(move || {
            runtime.cleanup_cgroups(&mut steps, &dir, owner.as_str());
            if steps.0.is_empty() {
                // No process of the container runs.
                steps.record("running its poststop hooks", poststop_hooks::run(&dir));
            }
            let notice = dir.join(super::resize::notice::file::DIR);
            steps.record("unmounting its file about resizes", unmount(&notice));
            steps.record("removing its writable layer", safe_fs::remove_dir(&runtime.layout.writable_layer(&owner)));
            steps.record("releasing its image", runtime.images.release(owner.as_str()));
            if steps.0.is_empty() {
                // Last, because its intent names what to remove.
                steps.record("removing its directory", safe_fs::remove_dir(&dir));
            }
            steps.0
        })
        .await;
        if left.is_empty() {
            self.selinux.free(id.as_str());
        }
        self.remember_pending(PendingCleanup::Container(pod.clone(), id.clone()), &left);
        left
    }

    /// Removes what an abandoned create has created since.
    pub(super) async fn cleanup_abandoned(self: &Arc<Self>, pod: &PodId, id: &ContainerId, intent: &ContainerIntent) {
        let dir = self.layout.container(pod, id);
        // The directory may be removed already, and the cgroup created after that.
        let noted = safe_fs::private_dir(&dir).and_then(|()| safe_fs::write_json(&dir.join(INTENT_FILE), intent));
        if let Err(error) = noted {
            tracing::warn!(
                error = chain(&error),
                "cannot write the cleanup record (intent.json) of a container whose creation was aborted; parts of it may remain"
            );
        }
        self.cleanup_container(pod, id).await;
        if matches!(self.pods.find(pod.as_str()), Ok(None)) {
            self.cleanup_pod(pod).await;
        }
    }

    /// Removes all of a pod and its containers: shim, mounts, cgroup, directory.
    pub(super) async fn cleanup_pod(self: &Arc<Self>, id: &PodId) -> Vec<CleanupFailure> {
        let dir = self.layout.pod(id);
        let mut left = Vec::new();
        for name in safe_fs::list_names(&self.layout.containers(id)).unwrap_or_default() {
            if let Ok(container) = ContainerId::try_from(name) {
                let names = self.container_span(id, &container);
                left.extend(self.cleanup_container(id, &container).instrument(names).await);
            }
        }
        self.disconnect(id).await;
        self.end_shim(id).await;
        let (runtime, pod) = (self.clone(), id.clone());
        let mut steps = CleanupSteps(left);
        let left = blocking_stop(move || {
            for (step, outcome) in unmount_all(&dir) {
                steps.record(step, outcome);
            }
            runtime.cleanup_cgroups(&mut steps, &dir, pod.as_str());
            runtime.remove_parent_cgroups();
            if steps.0.is_empty() {
                steps.record("removing its directory", safe_fs::remove_dir(&dir));
            }
            steps.0
        })
        .await;
        if left.is_empty() {
            self.selinux.free(id.as_str());
        }
        self.remember_pending(PendingCleanup::Pod(id.clone()), &left);
        left
    }

    /// Ends a pod's shim, and with it the pod's processes.
    pub(super) async fn end_shim(&self, id: &PodId) {
        let dir = self.layout.pod(id);
        let known = self.sandboxes.lock().remove(id);
        let left = async {
            let sandbox = match known {
                Some(sandbox) => sandbox,
                None => SandboxClient::connect(&dir, mpsc::unbounded_channel().0).await?,
            };
            sandbox.shutdown().await
        };
        // A shim that does not exit is killed.
        tokio::time::timeout(STOP_TIMEOUT, left).await.ok();
        blocking_stop(move || SandboxClient::kill(&dir)).await;
    }

    /// Removes the cgroup that the intent names; without a readable intent, all cgroups named after
    /// the ID.
    fn cleanup_cgroups(&self, steps: &mut CleanupSteps, dir: &Path, id: &str) {
        for CgroupIntent { cgroup, ours } in self.cgroups_to_remove(dir, id) {
            let Some(path) = cgroup else { continue };
            let cgroup = self.cgroup(&path);
            if !ours {
                steps.record("releasing its cgroup", cgroup.release_foreign());
            } else if cgroup.exists() {
                steps.record("killing the processes in its cgroup", cgroup.kill_all(KILL_WITHIN));
                steps.record("removing its cgroup", cgroup.remove());
            }
        }
    }

    fn remember_pending(&self, pending: PendingCleanup, left: &[CleanupFailure]) {
        let mut pending_cleanup = self.pending_cleanup.lock();
        pending_cleanup.retain(|d| *d != pending);
        if !left.is_empty() {
            let words: Vec<String> = left.iter().map(|one| format!("{}: {}", one.step, one.error)).collect();
            tracing::warn!(%pending, left = words.join("; "), "cannot remove everything that belongs to a removed or failed pod or container; will retry");
            pending_cleanup.push(pending);
        }
    }

    /// Retries failed cleanups every 30 s, and returns freed memory to the kernel.
    pub(super) fn spawn_cleanup_loop(self: &Arc<Self>) {
        let runtime = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(30)).await;
                let Some(runtime) = runtime.upgrade() else { return };
                let again = Arc::clone(&runtime);
                blocking(move || again.retry_orphaned_layers()).await;
                if runtime.has_garbage().await {
                    runtime.collect_garbage().await;
                }
                let pending_cleanup = runtime.pending_cleanup.lock().clone();
                for pending in pending_cleanup {
                    match pending {
                        PendingCleanup::Pod(pod) => runtime.cleanup_pod(&pod).instrument(runtime.pod_span(&pod)).await,
                        PendingCleanup::Container(pod, container) => {
                            let names = runtime.container_span(&pod, &container);
                            runtime.cleanup_container(&pod, &container).instrument(names).await
                        }
                    };
                }
                runtime.request_trim();
            }
        });
    }

    /// Requests to return freed memory to the kernel.
    pub(crate) fn request_trim(&self) {
        self.freed.notify_one();
    }

    /// Returns freed memory to the kernel (`malloc_trim`) after removals and streaming, at most
    /// once per second.
    pub(super) fn spawn_trim_loop(&self) {
        // Not an `Arc` of the runtime, which would keep it alive.
        let freed = self.freed.clone();
        tokio::spawn(async move {
            loop {
                freed.notified().await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                blocking(sys::malloc::trim).await;
            }
        });
    }
}

/// Unmounts all mounts of a pod.
pub(super) fn unmount_all(dir: &Path) -> [(&'static str, std::io::Result<()>); 3] {
    [
        ("unmounting its network namespace", unmount(&dir.join("netns"))),
        ("unmounting its shared memory", unmount(&dir.join("shm"))),
        ("unmounting its files", unmount(&dir.join(super::pod::etc_files::DIR))),
    ]
}

/// Unmounts `path`; does nothing if nothing is mounted there.
fn unmount(path: &Path) -> Result<(), std::io::Error> {
    match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
