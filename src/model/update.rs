//! Requests that update the resources of a pod or container.

use serde::{Deserialize, Serialize};

use crate::pod_resources::{PodResourceConfig, Resources};
use crate::resources::LimitsPatch;
use crate::{ContainerSpec, PodSpec};

/// An UpdateContainerResources request. `None` does not change the value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerUpdate {
    pub limits: LimitsPatch,
    pub kubernetes_resources: Option<Resources>,
}

impl ContainerUpdate {
    /// Applies this update to `spec`.
    pub fn apply_to(&self, spec: &mut ContainerSpec) {
        let ContainerUpdate { limits, kubernetes_resources } = self;
        spec.resources = std::mem::take(&mut spec.resources).merged(limits);
        if kubernetes_resources.is_some() {
            spec.kubernetes_resources.clone_from(kubernetes_resources);
        }
    }
}

/// An UpdatePodSandboxResources request. `None` does not change the value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PodUpdate {
    pub resources: Option<LimitsPatch>,
    pub overhead: Option<LimitsPatch>,
    pub pod_resources: Option<PodResourceConfig>,
}

impl PodUpdate {
    /// Applies this update to `spec`.
    pub fn apply_to(&self, spec: &mut PodSpec) {
        let PodUpdate { resources, overhead, pod_resources: announced } = self;
        if let Some(resources) = resources {
            spec.resources = std::mem::take(&mut spec.resources).merged(resources);
        }
        if let Some(overhead) = overhead {
            // Replaces all fields: an empty message means that the pod no longer has overhead.
            spec.overhead = overhead.clone();
        }
        if announced.is_some() {
            spec.pod_resources.clone_from(announced);
        }
    }
}
