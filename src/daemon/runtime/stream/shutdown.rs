//! Reports the shutdown of the daemon to exec and attach clients: streams that merely end mean
//! success.

use std::time::Duration;

use streaming::Outcome;
use tokio::sync::watch;

use crate::runtime::Runtime;

/// How long all clients may take to receive it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts the streaming clients, and signals the shutdown to them.
#[derive(Debug, Default)]
pub(crate) struct StreamShutdown(watch::Sender<bool>);

/// A streaming client; shutdown waits until it is dropped.
#[derive(Debug)]
pub(crate) struct ShutdownWatch(watch::Receiver<bool>);

impl StreamShutdown {
    pub(crate) fn watch(&self) -> ShutdownWatch {
        ShutdownWatch(self.0.subscribe())
    }
}

impl ShutdownWatch {
    /// Returns when the daemon shuts down.
    pub(crate) async fn wait_shutdown(&mut self) {
        // An error means that the runtime was dropped.
        self.0.wait_for(|over| *over).await.ok();
    }

    /// Returns the status for the client if only the daemon ended.
    pub(crate) fn shutdown_status(&self) -> Option<Outcome> {
        let words = "the crisp daemon is shutting down: the program keeps running without this connection";
        self.0.borrow().then(|| Outcome::Failed(words.to_owned()))
    }
}

impl Runtime {
    /// Disconnects all streaming clients, and waits a limited time until they have received the
    /// status.
    pub(crate) async fn shutdown_streams(&self) {
        self.stream_shutdown.0.send_replace(true);
        if tokio::time::timeout(PATIENCE, self.stream_shutdown.0.closed()).await.is_err() {
            tracing::warn!("the daemon exits before all exec and attach clients received the status of the shutdown");
        }
    }
}
