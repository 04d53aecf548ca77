//! Ctrl-C, and what must not stay behind after it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sync::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// What a shell expects of a command that was interrupted.
pub(super) const EXIT_CODE: u8 = 130;
/// How long work may take to give up: what hangs in a write to a slow pipe never will.
const GRACE: Duration = Duration::from_secs(2);

/// Told of SIGINT and SIGTERM.
#[derive(Debug, Default)]
pub(super) struct Interrupt {
    stopped: AtomicBool,
    told: Notify,
    half_written: Mutex<Option<PathBuf>>,
}

impl Interrupt {
    /// Watches for signals from now on; who does not heed one is ended soon after it.
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

    /// Takes note of signals from now on, and leaves it to the work when to heed them: it has something to take back first.
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
            ours.told.notify_waiters();
        });
        Ok(noted)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits for a signal.
    pub(super) async fn stopped(&self) {
        let told = self.told.notified();
        if !self.is_stopped() {
            told.await;
        }
    }

    /// Remembers a file that must not stay unless it gets whole; the one before is none any more.
    pub(super) fn half_written(&self, path: Option<&Path>) {
        *self.half_written.lock() = path.map(Path::to_owned);
    }

    fn clear(&self) {
        if let Some(path) = self.half_written.lock().take() {
            // We are about to end, and there is nobody to tell.
            std::fs::remove_file(path).ok();
        }
    }
}
