//! Errors and events of every kind of sandbox.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use model::{ErrorClass, ErrorKind};
use shim_protocol::{Event, ShimError, ShimErrorKind};

/// The timeout of a sandbox for requests of stops and removals. They do not depend on its answer: its
/// processes are killed through the cgroup.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error("connecting to the pod's shim at {path}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("the pod's shim (crisp-shim) has exited, which ends the pod: recreate it")]
    Gone,
    #[error("the pod's shim (crisp-shim) did not answer a request of the daemon within {0:?}")]
    Silent(Duration),
    #[error("the pod's shim (crisp-shim) has not answered an earlier request, so the daemon does not wait for it")]
    Mute,
    #[error(
        "the pod's shim ({release}) uses protocol {protocol}, which this daemon does not support: recreate the pod"
    )]
    Foreign { release: String, protocol: u32 },
    #[error("exchanging messages with the pod's shim")]
    Frame(#[from] shim_protocol::FrameError),
    #[error("sending a request to the pod's shim")]
    Send(#[source] io::Error),
    #[error("the pod's shim (crisp-shim) sent an invalid response to a request of the daemon; please report this bug")]
    Mismatch,
    #[error(transparent)]
    Failed(#[from] ShimError),
}

impl SandboxError {
    /// Returns whether the error proves that the shim has exited. All other errors may be temporary:
    /// the shim is busy, stopped or of another release, or this process has no more descriptors.
    pub(crate) fn is_dead(&self) -> bool {
        let Self::Connect { source, .. } = self else { return false };
        matches!(source.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
    }
}

impl ErrorClass for SandboxError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Connect { .. } | Self::Gone | Self::Silent(_) | Self::Mute => ErrorKind::Unavailable,
            Self::Foreign { .. } => ErrorKind::Unsupported,
            Self::Frame(_) | Self::Send(_) | Self::Mismatch => ErrorKind::Internal,
            Self::Failed(failure) => match failure.kind {
                ShimErrorKind::NotFound => ErrorKind::NotFound,
                ShimErrorKind::State => ErrorKind::Precondition,
                ShimErrorKind::Program | ShimErrorKind::Invalid => ErrorKind::Invalid,
                ShimErrorKind::Exhausted => ErrorKind::Exhausted,
                ShimErrorKind::Unsupported => ErrorKind::Unsupported,
                ShimErrorKind::Refused | ShimErrorKind::Internal => ErrorKind::Internal,
            },
        }
    }
}

/// A message that a sandbox sends at any time.
#[derive(Debug)]
pub(crate) enum SandboxEvent {
    Event(Event),
    /// The connection ended: the shim exited, or disconnected a daemon that read too slowly.
    Gone,
}
