//! Pod resources (KEP-4112): requests and limits of a pod spec, declared before the containers exist.
//!
//! RunPodSandbox may declare a [`PodResourceConfig`]: every container that the pod will have, each
//! with its [`Resources`], mounts and devices. [`ContainerResourceConfig::differences`] compares a
//! container with its declaration; [`pod_limits()`] computes the limits of the whole pod.

mod diff;
pub mod pod_limits;
mod qualified_name;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use diff::Difference;
pub use pod_limits::pod_limits;
pub use qualified_name::{InvalidName, QualifiedName};

use crate::container::{ContainerSpec, Device, Mount};
use crate::quantity::Quantity;

/// Amounts by resource: `cpu`, `memory`, `hugepages-2Mi`, `example.com/gpu`.
pub type ResourceList = BTreeMap<QualifiedName, Quantity>;

/// Requests and limits, verbatim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    pub requests: ResourceList,
    pub limits: ResourceList,
}

/// The resources, mounts and devices of all containers of a pod, declared when it is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodResourceConfig {
    /// In the order of the pod spec. Names are unique within a kind.
    pub containers: Vec<ContainerResourceConfig>,
    /// Resources of the pod itself; `None`: the sum of its containers.
    pub resources: Option<Resources>,
    pub source: Source,
}

/// The origin of a declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A client that implements KEP-4112 and sends the resources again with each container.
    Request,
    /// An annotation of the pod, also used for its containers, whose requests have no resources.
    Annotation,
}

/// The declaration of one container of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerResourceConfig {
    pub name: String,
    pub kind: ContainerKind,
    pub resources: Option<Resources>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    /// Fully qualified CDI device names.
    pub cdi_devices: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerKind {
    /// Init containers run one after another and exit before the others start.
    Init,
    Regular,
}

impl fmt::Display for ContainerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Init => "init container",
            Self::Regular => "container",
        })
    }
}

impl PodResourceConfig {
    /// Returns the declaration of `container` by name; if two kinds share the name, the one with
    /// fewer differences.
    pub fn of(&self, container: &ContainerSpec) -> Option<&ContainerResourceConfig> {
        let named = self.containers.iter().filter(|declared| declared.name == container.meta.name);
        named.min_by_key(|declared| declared.differences(container).len())
    }
}
