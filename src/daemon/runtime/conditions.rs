//! The conditions of the CRI Status call.

use super::Runtime;
use super::pod::network::Readiness;

/// A condition of CRI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) name: &'static str,
    pub(crate) ok: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Runtime {
    pub(crate) async fn conditions(&self) -> Vec<Condition> {
        let runtime = Condition { name: "RuntimeReady", ok: true, reason: String::new(), message: String::new() };
        let (ok, reason, message) = match self.networks.readiness().await {
            Readiness::Ready(words) => (true, String::new(), words),
            Readiness::NotReady { reason, message } => (false, reason.to_owned(), message),
        };
        vec![runtime, Condition { name: "NetworkReady", ok, reason, message }]
    }
}
