//! Answers that fail the request.

use model::{ErrorClass, ErrorKind};

use super::Group;
use crate::api::Field;

/// An answer of a plugin that cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error("plugins {second:?} and {first:?} both tried to set {}{}{key}", field.as_str_name(), space(key))]
    Conflict { field: Field, key: String, first: String, second: String },
    #[error("plugin {plugin:?} may not change {group}: allow {group:?} for it in the section `nri`", group = group.name())]
    NotAllowed { plugin: String, group: Group },
    #[error("plugin {plugin:?} sets {field}, which crisp does not support")]
    NotSupported { plugin: String, field: &'static str },
    #[error("plugin {plugin:?} sets {field} {value:?}: {reason}")]
    Invalid { plugin: String, field: &'static str, value: String, reason: &'static str },
    #[error("plugin {plugin:?} requests an update of the container that is being created")]
    OwnUpdate { plugin: String },
}

fn space(key: &str) -> &'static str {
    if key.is_empty() { "" } else { " " }
}

impl ErrorClass for MergeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Conflict { .. } | Self::Invalid { .. } | Self::OwnUpdate { .. } => ErrorKind::Precondition,
            Self::NotAllowed { .. } => ErrorKind::Denied,
            Self::NotSupported { .. } => ErrorKind::Unsupported,
        }
    }
}
