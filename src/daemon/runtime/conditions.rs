//! The conditions of the CRI Status call, and the log lines about their changes.
//!
//! Each change is logged once: at the start, when the configuration of the network changes, and at a
//! Status call. A task compares the CNI directory every few seconds, since a client may not call
//! Status. It neither creates the bridge nor calls a plugin unless something has changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::pod::network::Readiness;
use super::{Runtime, blocking};

/// How often the configuration of the network is compared.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long the start waits for the first conditions.
const FIRST_WITHIN: Duration = Duration::from_secs(1);

/// A condition of CRI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) name: &'static str,
    pub(crate) ok: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// The conditions that were logged last: status and reason by name. A message may change without
/// news, such as the text of a plugin.
#[derive(Debug, Default)]
pub(super) struct LoggedConditions(sync::Mutex<BTreeMap<&'static str, (bool, String)>>);

impl LoggedConditions {
    /// Logs the conditions that differ from the last ones.
    fn log(&self, conditions: &[Condition]) {
        let mut logged = self.0.lock();
        for Condition { name, ok, reason, message } in conditions {
            let now = (*ok, reason.clone());
            if logged.get(name) == Some(&now) {
                continue;
            }
            logged.insert(name, now);
            match ok {
                true => tracing::info!(condition = name, status = ok, detail = message, "node condition changed"),
                false => {
                    tracing::warn!(condition = name, status = ok, reason, detail = message, "node condition changed")
                }
            }
        }
    }
}

impl Runtime {
    /// Returns the conditions, and creates the bridge if pods need it.
    pub(crate) async fn conditions(&self) -> Vec<Condition> {
        self.log_conditions(self.networks.readiness().await)
    }

    fn log_conditions(&self, network: Readiness) -> Vec<Condition> {
        let runtime = Condition { name: "RuntimeReady", ok: true, reason: String::new(), message: String::new() };
        let (ok, reason, message) = match network {
            Readiness::Ready(words) => (true, String::new(), words),
            Readiness::NotReady { reason, message } => (false, reason.to_owned(), message),
        };
        let conditions = vec![runtime, Condition { name: "NetworkReady", ok, reason, message }];
        self.logged_conditions.log(&conditions);
        conditions
    }

    /// Logs the conditions now, and again when the configuration of the network has changed. Returns
    /// after the first look, unless a plugin takes long.
    pub(super) async fn watch_conditions(self: &Arc<Self>) {
        let runtime = Arc::downgrade(self);
        let (looked, first) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let (mut last, mut looked) = (None, Some(looked));
            while let Some(this) = runtime.upgrade() {
                let again = Arc::clone(&this);
                let now = Some(blocking(move || again.networks.fingerprint()).await);
                if now != last {
                    last = now;
                    this.log_conditions(this.networks.readiness_without_changes().await);
                }
                drop((this, looked.take()));
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        // Either way the start continues.
        tokio::time::timeout(FIRST_WITHIN, first).await.ok();
    }
}
