//! The runtime handler of a pod, which a newer configuration may not have.

use config::Handler;
use model::{ErrorClass, ErrorKind, PodId};

use crate::runtime::Runtime;
use crate::store::PodRecord;

/// The handler of a pod is not configured any more. The default handler might allow what this one
/// forbids, so the pod gets no new containers.
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
        let missing = || HandlerMissing { pod: pod.id.clone(), name: pod.spec.handler.clone() };
        self.settings().handlers.get(&pod.spec.handler).cloned().ok_or_else(missing)
    }
}
