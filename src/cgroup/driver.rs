//! The two cgroup drivers, and the names of their cgroups.

use std::sync::Arc;

use crate::systemd::{self, Systemd};
use model::{CgroupPath, InvalidCgroupPath};

/// The creator of cgroups: crisp itself, in the file system, or systemd on its behalf.
#[derive(Debug, Clone, Default)]
pub enum Driver {
    #[default]
    Cgroupfs,
    Systemd(Arc<Systemd>),
}

impl Driver {
    /// Returns the cgroup of a pod with this `cgroup_parent`.
    pub fn given(&self, path: &CgroupPath) -> Result<CgroupPath, InvalidCgroupPath> {
        match self {
            Self::Cgroupfs => Ok(path.clone()),
            Self::Systemd(_) => systemd::slice(path),
        }
    }

    /// Returns the cgroup of a pod below `parent`.
    pub fn pod(&self, parent: &CgroupPath, id: &str) -> Result<CgroupPath, InvalidCgroupPath> {
        match self {
            Self::Cgroupfs => parent.join(&format!("pod{id}")),
            Self::Systemd(_) => systemd::pod(parent, id),
        }
    }

    /// Returns the cgroup of a container in that of its pod.
    pub fn container(&self, pod: &CgroupPath, id: &str) -> Result<CgroupPath, InvalidCgroupPath> {
        match self {
            Self::Cgroupfs => pod.join(id),
            Self::Systemd(_) => pod.join(&systemd::scope(id)),
        }
    }
}
