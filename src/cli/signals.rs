//! SIGINT and SIGTERM, and the removal of a partial output file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sync::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// Exit code of a command that was interrupted: 128 + SIGINT.
pub(super) const EXIT_CODE: u8 = 130;
/// Time for work to stop after a signal; a blocked write to a pipe would never stop.
const GRACE: Duration = Duration::from_secs(2);

/// Records SIGINT and SIGTERM.
#[derive(Debug, Default)]
pub(super) struct Interrupt {
    stopped: AtomicBool,
    notify: Notify,
    half_written: Mutex<Option<PathBuf>>,
}

impl Interrupt {
    /// Records signals, and exits the process [`GRACE`] after the first one.
    pub(super) fn watch() -> std::io::Result<Arc<Self>> {
        let watched = Self::note()?;
        let ours = watched.clone();
        tokio::spawn(async move {
            ours.stopped().await;
            tokio::time::sleep(GRACE).await;
            ours.clear();
            std::process::exit(EXIT_CODE.into());
        });
        Ok(watched)
    }

    /// Records signals only: the caller stops when it has rolled back its changes.
    pub(super) fn note() -> std::io::Result<Arc<Self>> {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let noted = Arc::new(Self::default());
        let ours = noted.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            ours.stopped.store(true, Ordering::Release);
            ours.notify.notify_waiters();
        });
        Ok(noted)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits for a signal.
    pub(super) async fn stopped(&self) {
        let notified = self.notify.notified();
        if !self.is_stopped() {
            notified.await;
        }
    }

    /// Sets the partial output file to remove on exit; None if there is none (any more).
    pub(super) fn half_written(&self, path: Option<&Path>) {
        *self.half_written.lock() = path.map(Path::to_owned);
    }

    fn clear(&self) {
        if let Some(path) = self.half_written.lock().take() {
            // The process exits next; an error could not be reported.
            std::fs::remove_file(path).ok();
        }
    }
}
