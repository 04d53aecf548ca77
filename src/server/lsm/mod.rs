//! Linux security modules: under which profile or label a container runs, on hosts that have such a thing.
//!
//! A request for what the host lacks is refused; one that leaves it to the runtime is granted without. The names that come of it stand
//! in the OCI configuration, and the shim puts them in force.

mod apparmor;
mod selinux;

pub(crate) use apparmor::{Apparmor, ApparmorError};
pub(crate) use selinux::relabel::{RelabelError, relabel};
pub(crate) use selinux::{Labels, Selinux, SelinuxError, Wish};
