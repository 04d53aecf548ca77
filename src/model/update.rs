//! Requests that change the resources of a pod or container.

use serde::{Deserialize, Serialize};

use crate::pod_resources::{PodResourceConfig, Resources};
use crate::resources::LimitsPatch;
use crate::{ContainerSpec, PodSpec};

/// An UpdateContainerResources request. `None` leaves the value as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerUpdate {
    pub limits: LimitsPatch,
    pub kubernetes_resources: Option<Resources>,
}

impl ContainerUpdate {
    /// Changes `spec` to what it says with this update.
    pub fn apply_to(&self, spec: &mut ContainerSpec) {
        let ContainerUpdate { limits, kubernetes_resources } = self;
        spec.resources = std::mem::take(&mut spec.resources).merged(limits);
        if kubernetes_resources.is_some() {
            spec.kubernetes_resources.clone_from(kubernetes_resources);
        }
    }
}

/// An UpdatePodSandboxResources request. `None` leaves the value as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PodUpdate {
    pub resources: Option<LimitsPatch>,
    pub overhead: Option<LimitsPatch>,
    pub pod_resources: Option<PodResourceConfig>,
}

impl PodUpdate {
    /// Changes `spec` to what it says with this update.
    pub fn lay_over(&self, spec: &mut PodSpec) {
        let PodUpdate { resources, overhead, pod_resources: announced } = self;
        if let Some(resources) = resources {
            spec.resources = std::mem::take(&mut spec.resources).merged(resources);
        }
        if let Some(overhead) = overhead {
            // The whole of it: a pod that costs nothing any more says so by an empty message.
            spec.overhead = overhead.clone();
        }
        if announced.is_some() {
            spec.pod_resources.clone_from(announced);
        }
    }
}
