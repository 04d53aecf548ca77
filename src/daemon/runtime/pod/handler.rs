//! The handler of a pod, which a newer configuration may no longer have.

use config::Handler;
use model::{ErrorClass, ErrorKind, PodId};

use crate::runtime::Runtime;
use crate::store::PodRecord;

/// The pod lives on, but nobody knows any more how its containers are to be run: the default could allow what the handler
/// was there to forbid.
#[derive(Debug, thiserror::Error)]
#[error("runtime handler {name:?} of pod {pod} is no longer configured: the pod accepts no new containers")]
pub(crate) struct HandlerMissing {
    pod: PodId,
    name: String,
}

impl ErrorClass for HandlerMissing {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Precondition
    }
}

impl Runtime {
    pub(crate) fn handler(&self, pod: &PodRecord) -> Result<Handler, HandlerMissing> {
        let gone = || HandlerMissing { pod: pod.id.clone(), name: pod.spec.handler.clone() };
        self.settings().handlers.get(&pod.spec.handler).cloned().ok_or_else(gone)
    }
}
