//! What was asked of a container.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::pod_resources::Resources;
use crate::resources::LimitsPatch;
use crate::security::ContainerSecurity;
use crate::signal::Signal;

/// Who the container is in its pod.
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

/// An image as the client names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageName {
    /// What is looked up: an id, a tag or a digest.
    pub image: String,
    /// What the pod's author wrote, if the client says so.
    pub user_specified: String,
    pub annotations: BTreeMap<String, String>,
    /// The runtime handler the image is for; "" is the default one.
    pub handler: String,
}

/// A container as the client asked for it. Kept verbatim, since status has to give it back.
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
    /// Beneath the pod's log directory; none when nothing is to be logged.
    pub log_path: Option<PathBuf>,
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
    pub resources: LimitsPatch,
    /// As the pod spec states them; none where nobody told. Older records do not have it.
    #[serde(default)]
    pub kubernetes_resources: Option<Resources>,
    pub security: ContainerSecurity,
    /// None: the image's, or SIGTERM.
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
    /// Nothing crosses.
    Private,
    /// Mounts made on the host show in the container.
    HostToContainer,
    /// Both ways.
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
