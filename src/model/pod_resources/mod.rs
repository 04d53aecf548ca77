//! Requests and limits as a pod spec states them, and what is announced of a whole pod before its containers come (KEP-4112).
//!
//! A pod may come with an [`PodResourceConfig`]: every container that it will have, each with its [`Resources`], mounts and
//! devices. [`ContainerResourceConfig::differences`] tells how a container that arrives is not what was announced; [`pod_limits()`] is
//! what the pod as a whole may use.

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

/// Everything that a pod's containers will ask for, known when the pod is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodResourceConfig {
    /// In the order of the pod spec. No two of the same kind have the same name.
    pub containers: Vec<ContainerResourceConfig>,
    /// Stated for the pod itself; none: the pod is the sum of its containers.
    pub resources: Option<Resources>,
    pub source: Source,
}

/// Who announced it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A client that knows KEP-4112, and says of each container again what it may use.
    Request,
    /// A pod's annotation, which has to do for its containers too.
    Annotation,
}

/// One container of the pod, as it is to arrive later.
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
    /// One of those that run to their end, one after another, before the others start.
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
    /// What was announced of `container`, by its name; where two kinds share the name, the one that it is more like.
    pub fn of(&self, container: &ContainerSpec) -> Option<&ContainerResourceConfig> {
        let named = self.containers.iter().filter(|announced| announced.name == container.meta.name);
        named.min_by_key(|announced| announced.differences(container).len())
    }
}
