//! The one way out: clearing away a pod or a container, whatever of it exists.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use model::error_chain::chain;
use model::{ContainerId, PodId};
use nix::mount::{MntFlags, umount2};
use tokio::sync::mpsc;

use super::container::poststop_hooks;
use super::{Runtime, blocking, blocking_stop};
use crate::sandbox_client::{STOP_TIMEOUT, SandboxClient};
use crate::store::intent::INTENT_FILE;
use crate::store::{CgroupIntent, ContainerIntent};

/// Something to clear away later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PendingCleanup {
    Pod(PodId),
    Container(PodId, ContainerId),
}

/// A cleanup step that failed; the daemon retries it later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CleanupFailure {
    pub(crate) step: String,
    pub(crate) error: String,
}

/// How long killed processes may take to be gone.
const KILL_WITHIN: Duration = Duration::from_secs(10);

/// Collects what failed, and goes on.
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
    /// Clears away a container: its processes, cgroup, directories and its hold on the image. What fails is tried
    /// again later.
    pub(super) async fn cleanup_container(self: &Arc<Self>, pod: &PodId, id: &ContainerId) -> Vec<CleanupFailure> {
        let mut steps = CleanupSteps::default();
        if let Some(sandbox) = self.sandbox_of(pod) {
            // A shim that is gone has no container to forget, and one that hangs holds nothing up: the kernel is told too.
            sandbox.remove_container(id.clone()).await.ok();
        }
        let (runtime, dir, owner) = (self.clone(), self.layout.container(pod, id), id.clone());
        let left = blocking_stop(move || {
            runtime.cleanup_cgroups(&mut steps, &dir, owner.as_str());
            if steps.0.is_empty() {
                // Nothing of it runs any more.
                steps.record("running its poststop hooks", poststop_hooks::run(&dir));
            }
            steps.record("removing its writable layer", safe_fs::remove_dir(&runtime.layout.writable_layer(&owner)));
            steps.record("releasing its image", runtime.images.release(owner.as_str()));
            if steps.0.is_empty() {
                // Last, since it says what to clear.
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

    /// Clears away what a create that was given up has made since.
    pub(super) async fn cleanup_abandoned(self: &Arc<Self>, pod: &PodId, id: &ContainerId, intent: &ContainerIntent) {
        let dir = self.layout.container(pod, id);
        // It may be gone already, and the cgroup made after that.
        let noted = safe_fs::private_dir(&dir).and_then(|()| safe_fs::write_json(&dir.join(INTENT_FILE), intent));
        if let Err(error) = noted {
            tracing::warn!(container = %id, error = chain(&error), "cannot record the intent of an abandoned container; parts of it may remain");
        }
        self.cleanup_container(pod, id).await;
        if matches!(self.pods.find(pod.as_str()), Ok(None)) {
            self.cleanup_pod(pod).await;
        }
    }

    /// Clears away a pod and what is left of its containers: shim, mounts, cgroup, directory.
    pub(super) async fn cleanup_pod(self: &Arc<Self>, id: &PodId) -> Vec<CleanupFailure> {
        let dir = self.layout.pod(id);
        let mut left = Vec::new();
        for name in safe_fs::list_names(&self.layout.containers(id)).unwrap_or_default() {
            if let Ok(container) = ContainerId::try_from(name) {
                left.extend(self.cleanup_container(id, &container).await);
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

    /// Ends a pod's shim and all it watches over.
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
        // One that does not leave is ended by force.
        tokio::time::timeout(STOP_TIMEOUT, left).await.ok();
        blocking_stop(move || SandboxClient::kill(&dir)).await;
    }

    /// The cgroup that an intent names; where there is no intent that can be read, those that are called by the id.
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
            tracing::warn!(?pending, ?left, "cleanup failed; will retry");
            pending_cleanup.push(pending);
        }
    }

    /// Tries again what could not be cleared, and gives back memory that lists and looks left behind.
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
                        PendingCleanup::Pod(pod) => runtime.cleanup_pod(&pod).await,
                        PendingCleanup::Container(pod, container) => runtime.cleanup_container(&pod, &container).await,
                    };
                }
                runtime.request_trim();
            }
        });
    }

    /// Memory was let go of that may be worth giving back.
    pub(crate) fn request_trim(&self) {
        self.freed.notify_one();
    }

    /// After a burst of removals or of streaming clients, gives back the memory that they needed. Once a second at most.
    pub(super) fn spawn_trim_loop(&self) {
        // Not the whole runtime, which would never end then.
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

/// Takes away what was mounted for a pod.
pub(super) fn unmount_all(dir: &Path) -> [(&'static str, std::io::Result<()>); 3] {
    [
        ("unmounting its network namespace", unmount(&dir.join("netns"))),
        ("unmounting its shared memory", unmount(&dir.join("shm"))),
        ("unmounting its files", unmount(&dir.join(super::pod::etc_files::DIR))),
    ]
}

/// What is not mounted needs no unmounting.
fn unmount(path: &Path) -> Result<(), std::io::Error> {
    match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
