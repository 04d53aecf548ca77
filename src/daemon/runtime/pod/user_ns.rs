//! Checks whether this host supports user namespaces, and which pods may have one.

use model::error_chain::chain;
use model::{ErrorClass, ErrorKind, NsMode, PodSpec, RequestField};
use safe_fs::FileError;

use crate::failpoint;
use crate::runtime::Runtime;
use crate::sandbox_client::ShimProgram;
use crate::store::Layout;

#[derive(Debug, thiserror::Error)]
pub(crate) enum UserNsError {
    #[error("this host does not support user namespaces: {0}")]
    Host(String),
    #[error("the PID namespace must not be NODE in a pod with a user namespace")]
    HostPid,
    #[error("the IPC namespace must not be NODE in a pod with a user namespace")]
    HostIpc,
}

impl ErrorClass for UserNsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Host(_) => ErrorKind::Unsupported,
            Self::HostPid | Self::HostIpc => ErrorKind::Invalid,
        }
    }

    fn field(&self) -> Option<RequestField> {
        Some(match self {
            Self::Host(_) => RequestField::UserNamespace,
            Self::HostPid => RequestField::PidMode,
            Self::HostIpc => RequestField::IpcMode,
        })
    }
}

/// The reason why this host does not support user namespaces; `None` if it does.
pub(crate) type UserNsUnavailable = Option<String>;

/// Creates one in a temporary directory. A failure, for example a full disk, does not keep the
/// daemon from starting.
pub(crate) async fn probe(shim: &ShimProgram, layout: &Layout) -> UserNsUnavailable {
    let lack = match failpoint::at("user_ns.probe") {
        Ok(()) => probe_in(shim, layout).await.unwrap_or_else(|error| Some(chain(&error))),
        Err(fault) => Some(fault.to_string()),
    };
    if let Some(reason) = &lack {
        tracing::info!(reason, "this host does not support user namespaces; pods that request one are refused");
    }
    lack
}

async fn probe_in(shim: &ShimProgram, layout: &Layout) -> Result<UserNsUnavailable, FileError> {
    let dir = layout.root.join("probe");
    // Left by a daemon that was killed here.
    safe_fs::remove_dir(&dir)?;
    safe_fs::private_dir(&dir)?;
    let lack = shim.probe(&dir, &layout.state).await;
    safe_fs::remove_dir(&dir)?;
    Ok(lack)
}

impl Runtime {
    /// Returns whether pods can have user namespaces.
    pub(crate) fn has_user_ns(&self) -> bool {
        self.user_ns.is_none()
    }

    /// Refuses the host's PID and IPC namespaces, whose owner is the host's root. The host's
    /// network is allowed; the pod cannot change it.
    pub(crate) fn check_user_ns(&self, pod: &PodSpec) -> Result<(), UserNsError> {
        let spaces = &pod.security.namespaces;
        match (&spaces.user, &self.user_ns) {
            (None, _) => Ok(()),
            (Some(_), _) if spaces.pid == NsMode::Node => Err(UserNsError::HostPid),
            (Some(_), _) if spaces.ipc == NsMode::Node => Err(UserNsError::HostIpc),
            (Some(_), Some(reason)) => Err(UserNsError::Host(reason.clone())),
            (Some(_), None) => Ok(()),
        }
    }
}
