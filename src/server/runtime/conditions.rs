//! Whether pods can run here.

use super::Runtime;

/// One thing that must hold, in CRI's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) name: &'static str,
    pub(crate) ok: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Runtime {
    pub(crate) fn conditions(&self) -> Vec<Condition> {
        let fine = |name| Condition { name, ok: true, reason: String::new(), message: String::new() };
        // A kubelet that believed otherwise would make pods again and again, waiting for their addresses.
        let network = Condition {
            ok: false,
            reason: "LoopbackOnly".to_owned(),
            message: "pods have a loopback interface only: pod networks are not supported yet".to_owned(),
            ..fine("NetworkReady")
        };
        vec![fine("RuntimeReady"), network]
    }
}
