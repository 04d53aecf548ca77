//! Checks sysctls: a pod may set those that its own namespaces separate from the host's.

use model::{ErrorClass, ErrorKind, NsMode, PodSpec, RequestField};

#[derive(Debug, thiserror::Error)]
pub(crate) enum SysctlError {
    #[error("sysctl {0:?} does not belong to a namespace of the pod: setting it would change the host")]
    NotNamespaced(String),
    #[error("sysctl {name:?} would change the host: the pod uses the host's {namespace} namespace")]
    Shared { name: String, namespace: &'static str },
    #[error("invalid sysctl name {0:?}: expected letters, digits, `_` and `-`, separated by dots")]
    Name(String),
    #[error("the value of sysctl {0:?} has an invalid character: expected letters, digits, blanks and `,.:-_`")]
    Value(String),
}

impl ErrorClass for SysctlError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotNamespaced(_) | Self::Shared { .. } | Self::Name(_) | Self::Value(_) => ErrorKind::Invalid,
        }
    }

    fn field(&self) -> Option<RequestField> {
        Some(RequestField::Sysctls)
    }
}

const IPC: [&str; 8] = [
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
];

/// Refuses sysctls that would change the host.
pub(crate) fn check(pod: &PodSpec) -> Result<(), SysctlError> {
    let spaces = &pod.security.namespaces;
    for (name, value) in &pod.sysctls {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let parts = name.split('.').all(|part| !part.is_empty());
        if !name.chars().all(plain) || !parts || !name.contains('.') {
            return Err(SysctlError::Name(name.clone()));
        }
        // Numbers, ranges, lists, names, addresses and keys. Other characters could separate
        // several assignments.
        let of_a_value = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '\t' | ',' | '.' | ':' | '-' | '_');
        if !value.chars().all(of_a_value) {
            return Err(SysctlError::Value(name.clone()));
        }
        let (shared, namespace) = if name.starts_with("net.") {
            (spaces.network == NsMode::Node, "network")
        } else if IPC.contains(&name.as_str()) || name.starts_with("fs.mqueue.") {
            (spaces.ipc == NsMode::Node, "ipc")
        } else {
            return Err(SysctlError::NotNamespaced(name.clone()));
        };
        if shared {
            return Err(SysctlError::Shared { name: name.clone(), namespace });
        }
    }
    Ok(())
}
