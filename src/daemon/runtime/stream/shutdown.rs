//! The end of a daemon, as those hear of it who look on at exec and attach. Streams that only end say that all went well.

use std::time::Duration;

use streaming::Outcome;
use tokio::sync::watch;

use crate::runtime::Runtime;

/// How long all of them may take to hear of it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Knows of all who look on, and whether they are to go.
#[derive(Debug, Default)]
pub(crate) struct StreamShutdown(watch::Sender<bool>);

/// Somebody who looks on, and is waited for until this is dropped.
#[derive(Debug)]
pub(crate) struct ShutdownWatch(watch::Receiver<bool>);

impl StreamShutdown {
    pub(crate) fn watch(&self) -> ShutdownWatch {
        ShutdownWatch(self.0.subscribe())
    }
}

impl ShutdownWatch {
    /// Returns when it is time to go.
    pub(crate) async fn wait_shutdown(&mut self) {
        // An error means that the runtime is gone altogether.
        self.0.wait_for(|over| *over).await.ok();
    }

    /// What the client is told where nothing ended but the daemon.
    pub(crate) fn shutdown_status(&self) -> Option<Outcome> {
        let words = "crisp is being stopped: what runs goes on, without this connection";
        self.0.borrow().then(|| Outcome::Failed(words.to_owned()))
    }
}

impl Runtime {
    /// Sends everybody away who looks on, and waits a moment until they know.
    pub(crate) async fn shutdown_streams(&self) {
        self.stream_shutdown.0.send_replace(true);
        if tokio::time::timeout(PATIENCE, self.stream_shutdown.0.closed()).await.is_err() {
            tracing::warn!("some streaming clients were not told that the daemon ends");
        }
    }
}
