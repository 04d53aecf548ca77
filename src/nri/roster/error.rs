//! Requests that plugins fail.

use std::time::Duration;

use model::{ErrorClass, ErrorKind};

use crate::merge::MergeError;
use crate::required::AnnotationError;
use crate::validate::Rejected;
use crate::wire::CallError;

/// A request that a plugin, or the lack of one, fails.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("required NRI plugins not connected after {} ms: {}", waited.as_millis(), plugins.join(", "))]
    Missing { plugins: Vec<String>, waited: Duration },
    #[error("required NRI plugin {plugin}: {method}")]
    Required { plugin: String, method: &'static str, source: CallError },
    #[error("NRI plugin {plugin}: {method}")]
    Refused { plugin: String, method: &'static str, source: CallError },
    #[error("NRI: {0}")]
    Merge(#[from] MergeError),
    #[error("NRI plugin {plugin} rejected the adjustment of the container: {reason}")]
    Rejected { plugin: String, reason: String },
    #[error("NRI: {0}")]
    Validator(#[from] Rejected),
    #[error("NRI: {0}")]
    Annotation(#[from] AnnotationError),
}

impl ErrorClass for RequestError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } => ErrorKind::Unavailable,
            Self::Required { source, .. } | Self::Refused { source, .. } => of_call(source),
            Self::Merge(error) => error.kind(),
            Self::Rejected { .. } | Self::Validator(_) => ErrorKind::Precondition,
            Self::Annotation(error) => error.kind(),
        }
    }
}

fn of_call(error: &CallError) -> ErrorKind {
    match error {
        CallError::Closed(_) => ErrorKind::Unavailable,
        CallError::TimedOut(_) | CallError::Queued(_) | CallError::QueueFull(_) => ErrorKind::Deadline,
        CallError::TooLarge(_) => ErrorKind::Exhausted,
        CallError::TooManyFields | CallError::Malformed(_) => ErrorKind::Internal,
        CallError::Refused { .. } => ErrorKind::Precondition,
    }
}
