//! The notices that a pod's annotation selects for a container.

use std::path::Path;

use config::{Handler, NoticeNotAllowed, SelectedNotices};
use model::{ContainerSpec, ErrorClass, ErrorKind, PodSpec};
use oci::RESIZE_NOTICE;

/// An annotation is this and the name of a container.
const PREFIX: &str = "resize-notice.crisp.dev/";

/// An annotation that crisp cannot follow.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoticeError {
    #[error("pod annotation {key}")]
    NotAllowed { key: String, source: NoticeNotAllowed },
    #[error(
        "config.mounts[{index}].container_path is at or below {RESIZE_NOTICE}, where pod annotation {key} has its file"
    )]
    Mount { key: String, index: usize },
}

impl ErrorClass for NoticeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotAllowed { .. } | Self::Mount { .. } => ErrorKind::Invalid,
        }
    }
}

/// Checks the annotations of all containers of a new pod.
pub(crate) fn check(pod: &PodSpec, handler: &Handler) -> Result<(), NoticeError> {
    let names = pod.annotations.keys().filter_map(|key| key.strip_prefix(PREFIX));
    names.map(|container| selected(pod, container, handler)).try_for_each(|outcome| outcome.map(drop))
}

/// Returns whether the pod selects any notice for the container.
pub(crate) fn selects(pod: &PodSpec, container: &str) -> bool {
    // Most pods have no such annotation: no key is built for them.
    pod.annotations.keys().any(|key| key.strip_prefix(PREFIX) == Some(container))
}

/// Returns the notices that the pod selects for the container.
pub(crate) fn selected(pod: &PodSpec, container: &str, handler: &Handler) -> Result<SelectedNotices, NoticeError> {
    let key = format!("{PREFIX}{container}");
    let Some(text) = pod.annotations.get(&key) else { return Ok(SelectedNotices::default()) };
    handler.resize_notices.select(text).map_err(|source| NoticeError::NotAllowed { key, source })
}

/// Returns whether a new container gets the file. Refuses a mount that would hide it.
pub(crate) fn has_file(pod: &PodSpec, container: &ContainerSpec, handler: &Handler) -> Result<bool, NoticeError> {
    let name = &container.meta.name;
    if !selected(pod, name, handler)?.file {
        return Ok(false);
    }
    match container.mounts.iter().position(|mount| Path::new(&mount.container_path).starts_with(RESIZE_NOTICE)) {
        Some(index) => Err(NoticeError::Mount { key: format!("{PREFIX}{name}"), index }),
        None => Ok(true),
    }
}
