//! The request to create a container.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::pod_resources::Resources;
use crate::resources::LimitsPatch;
use crate::security::ContainerSecurity;
use crate::signal::Signal;

/// The identity of a container in its pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContainerMeta {
    pub name: String,
    pub attempt: u32,
}

impl fmt::Display for ContainerMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, attempt } = self;
        write!(f, "{name} (attempt {attempt})")
    }
}

/// An image as named by the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageName {
    /// The name used for lookup: an id, a tag or a digest.
    pub image: String,
    /// The name in the pod spec, if the client sends it.
    pub user_specified: String,
    pub annotations: BTreeMap<String, String>,
    /// The runtime handler of the image; "" is the default one.
    pub handler: String,
}

/// A container as requested by the client. Kept verbatim, since ContainerStatus must return it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerSpec {
    pub meta: ContainerMeta,
    pub image: ImageName,
    /// Replaces the image's entrypoint (and then its command too).
    pub command: Vec<String>,
    /// Replaces the image's command.
    pub args: Vec<String>,
    /// Empty: the image's.
    pub working_dir: String,
    pub envs: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    /// Fully qualified CDI device names.
    pub cdi_devices: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Relative to the pod's log directory; `None`: the container is not logged.
    pub log_path: Option<PathBuf>,
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
    pub resources: LimitsPatch,
    /// As in the pod spec; `None` if the client sent none. Older records do not have this field.
    #[serde(default)]
    pub kubernetes_resources: Option<Resources>,
    pub security: ContainerSecurity,
    /// `None`: the image's, or SIGTERM.
    pub stop_signal: Option<Signal>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub container_path: String,
    pub source: MountSource,
    pub readonly: bool,
    pub recursive_read_only: bool,
    pub selinux_relabel: bool,
    pub propagation: Propagation,
    pub uid_mappings: Vec<IdMapping>,
    pub gid_mappings: Vec<IdMapping>,
    pub options: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountSource {
    Host(PathBuf),
    Image { image: ImageName, sub_path: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// Mounts do not propagate.
    Private,
    /// New mounts on the host appear in the container.
    HostToContainer,
    /// Mounts propagate in both directions.
    Bidirectional,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMapping {
    pub host: u32,
    pub container: u32,
    pub length: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub container_path: String,
    pub host_path: PathBuf,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}
