//! The CRI calls on pod sandboxes, one file per verb, and the parts of RunPodSandbox.

pub(crate) mod etc_files;
pub(crate) mod handler;
mod limits;
pub(crate) mod network;
pub(crate) mod parent_cgroups;
mod remove;
mod run;
pub(crate) mod stop;
mod sysctl;
mod update;
pub(crate) mod user_ns;
