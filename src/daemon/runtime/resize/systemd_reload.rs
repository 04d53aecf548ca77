//! Restores limits that a reload of systemd changed, with the systemd driver.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use cgroup::{AppliedValues, Change, Driver, ReloadWatcher, SyncError, Write};
use model::error_chain::chain;
use tokio::sync::mpsc;

use super::caller::{Caller, DaemonTask};
use super::finished::{FinishedResize, file_changes};
use super::outcomes::Outcome;
use super::transaction::Resizable;
use crate::runtime::{Runtime, blocking};
use crate::store::Entry;

impl Runtime {
    /// Checks the limits now, since systemd may have reloaded while no daemon ran, and after each later reload.
    pub(crate) fn watch_systemd_reloads(self: &Arc<Self>) {
        let Driver::Systemd(systemd) = self.driver.clone() else { return };
        let (sender, mut reloads) = mpsc::channel(1);
        // A thread for as long as the daemon runs; no request waits for it.
        std::thread::spawn(move || {
            let waited = ReloadWatcher::watch().and_then(|mut reloads| {
                loop {
                    reloads.wait()?;
                    if let Err(error) = systemd.settle() {
                        tracing::warn!(
                            error = chain(&error),
                            "systemd does not answer after a reload; checking the limits of pods and containers anyway"
                        );
                    }
                    if sender.blocking_send(()).is_err() {
                        return Ok(());
                    }
                }
            });
            if let Err(error) = waited {
                tracing::warn!(%error, "cannot detect reloads of systemd; limits that a reload changes are not restored");
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
                self.restore_entry(&entry).await;
                self.release_if_ended(&entry);
            }
        }
        for entry in self.pods.all() {
            let _turn = entry.lock_resources().await;
            if entry.get().cgroup.ours {
                self.restore_entry(&entry).await;
            }
        }
    }

    async fn restore_entry<R: Resizable>(self: &Arc<Self>, entry: &Arc<Entry<R>>) {
        let (began, clock) = (SystemTime::now(), Instant::now());
        let (runtime, seen) = (self.clone(), entry.clone());
        let restored: Result<Vec<Write>, SyncError> =
            blocking(move || runtime.cgroup_of(&seen).restore_after_reload(seen.get().applied())).await;
        let record = entry.get();
        match restored {
            Ok(writes) if writes.is_empty() => {}
            Ok(writes) => {
                let change = Change { writes, wanted: AppliedValues::new() };
                let finished = FinishedResize {
                    began,
                    duration: clock.elapsed(),
                    target: record.target(self),
                    caller: Caller::daemon(DaemonTask::SystemdReload),
                    files: file_changes(&change, record.applied(), None),
                    oom_score_adj: None,
                    outcome: Outcome::Restored,
                    error: None,
                    reclaimed: None,
                };
                self.finish_resize(&finished, record.cgroup_path());
            }
            // The container may have exited; otherwise its status shows the difference.
            Err(error) => {
                let (id, error) = (record.id(), chain(&error));
                tracing::warn!(
                    id,
                    error,
                    "cannot restore cgroup limits that a reload of systemd changed; `crisp explain` shows which"
                );
            }
        }
    }
}
