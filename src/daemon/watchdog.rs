//! Notifies systemd's watchdog while the daemon works.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use sync::threads::ORDINARY;
use tokio::task::JoinHandle;

use crate::runtime::Runtime;

/// Starts to notify the watchdog, if there is one, until the result is dropped.
pub(crate) fn notify_watchdog(runtime: &Arc<Runtime>) -> Option<WatchdogTask> {
    let limit = sd_notify::watchdog_enabled()?;
    tracing::debug!(limit_ms = millis(limit), "the daemon notifies the systemd watchdog");
    Some(WatchdogTask(tokio::spawn(run_watchdog(limit, Arc::clone(runtime)))))
}

#[derive(Debug)]
pub(crate) struct WatchdogTask(JoinHandle<()>);

impl Drop for WatchdogTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Skips the notification if all threads are blocked or the records cannot be locked.
async fn run_watchdog(limit: Duration, runtime: Arc<Runtime>) {
    loop {
        let books = Arc::clone(&runtime);
        let looked = ORDINARY.run(move || books.counts());
        match tokio::time::timeout(limit / 2, looked).await {
            Ok(Ok(_)) => {
                if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
                    tracing::warn!(%error, "cannot notify the systemd watchdog; systemd may restart the daemon");
                }
            }
            Ok(Err(_)) => tracing::error!(
                "the daemon's health check panicked; not notifying the systemd watchdog, which will restart the daemon"
            ),
            Err(_) => {
                tracing::error!(
                    limit_ms = millis(limit),
                    "the daemon's health check timed out; not notifying the systemd watchdog, which may restart the daemon"
                )
            }
        }
        tokio::time::sleep(limit / 4).await;
    }
}
