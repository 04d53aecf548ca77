//! Confines containers: seccomp filters, AppArmor profiles, SELinux labels.
//!
//! A request for a security module that the host lacks is an error; a default of the runtime is
//! skipped there. The resulting names go into the OCI configuration, and the shim applies them. No
//! async code, no wire types.
#![forbid(unsafe_code)]

mod apparmor;
pub mod seccomp;
mod selinux;

pub use apparmor::{Apparmor, ApparmorError};
pub use selinux::relabel::{RelabelError, relabel};
pub use selinux::{LabelRequest, Labels, Selinux, SelinuxError};
