//! With the systemd driver: what a reload of systemd changes is changed back.

use std::sync::Arc;

use cgroup::{AppliedValues, Driver, Knob, ReloadWatcher, SyncError};
use model::CgroupPath;
use model::error_chain::chain;
use tokio::sync::mpsc;

use crate::runtime::{Runtime, blocking};

impl Runtime {
    /// Checks the limits now, since systemd may have reloaded while no daemon ran, and after each later reload.
    pub(crate) fn watch_systemd_reloads(self: &Arc<Self>) {
        let Driver::Systemd(systemd) = self.driver.clone() else { return };
        let (sender, mut reloads) = mpsc::channel(1);
        // A thread of its own: it waits for as long as the daemon runs, and no request waits for it.
        std::thread::spawn(move || {
            let waited = ReloadWatcher::watch().and_then(|mut reloads| {
                loop {
                    reloads.wait()?;
                    if let Err(error) = systemd.settle() {
                        tracing::warn!(error = chain(&error), "systemd reloaded, and does not answer");
                    }
                    if sender.blocking_send(()).is_err() {
                        return Ok(());
                    }
                }
            });
            if let Err(error) = waited {
                tracing::warn!(%error, "reloads of systemd are not noticed: they may change limits");
            }
        });
        let runtime = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                let Some(runtime) = runtime.upgrade() else { return };
                runtime.restore_after_reload().await;
                drop(runtime);
                if reloads.recv().await.is_none() {
                    return;
                }
            }
        });
    }

    async fn restore_after_reload(self: &Arc<Self>) {
        for entry in self.containers.all() {
            let _turn = entry.lock_resources().await;
            let record = entry.get();
            if record.state.pid().is_some() {
                self.restore_cgroup_after_reload(record.id.as_str(), record.cgroup.clone(), record.applied.clone())
                    .await;
                self.release_if_ended(&entry);
            }
        }
        for entry in self.pods.all() {
            let _turn = entry.lock_resources().await;
            let record = entry.get();
            if record.cgroup.ours {
                self.restore_cgroup_after_reload(
                    record.id.as_str(),
                    record.cgroup.path.clone(),
                    record.applied.clone(),
                )
                .await;
            }
        }
    }

    async fn restore_cgroup_after_reload(self: &Arc<Self>, id: &str, cgroup: CgroupPath, settings: AppliedValues) {
        let runtime = self.clone();
        let undone: Result<Vec<Knob>, SyncError> =
            blocking(move || runtime.cgroup(&cgroup).restore_after_reload(&settings)).await;
        match undone {
            Ok(files) if files.is_empty() => {}
            Ok(files) => {
                let files: Vec<&str> = files.iter().map(Knob::file).collect();
                tracing::info!(id, ?files, "limits that a reload of systemd changed are in force again");
            }
            // It may have ended meanwhile; if not, its status shows the difference.
            Err(error) => tracing::warn!(id, error = chain(&error), "limits could not be looked after"),
        }
    }
}
