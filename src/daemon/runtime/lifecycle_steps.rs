//! The steps in the life of pods and containers.
//!
//! Every request that takes a step calls [`Runtime::at_step`] in exactly one place, with what is
//! known at that time. It logs the step at debug level; extensions are called from here.
//!
//! | step | called in | when |
//! |---|---|---|
//! | `RunPod` | `pod/run.rs` | namespaces and network exist, the pod is not visible yet |
//! | `StopPod` | `pod/stop.rs` | no container runs, the network is still connected |
//! | `RemovePod` | `pod/remove.rs` | all containers are removed, the pod's directory still exists |
//! | `CreateContainer` | `container/create.rs` | the request is checked, nothing is created |
//! | `StartContainer` | `container/start.rs` | the container waits for its start |
//! | `UpdateContainer` | `resize/transaction.rs` | the change is planned, nothing is written |
//! | `StopContainer` | `container/stop.rs` | no process of the container runs |
//! | `RemoveContainer` | `container/remove.rs` | the container has exited, its directory still exists |

use model::{ContainerId, ContainerUpdate, PodId};

use super::Runtime;
use super::container::create_plan::ContainerPlan;
use crate::store::{ContainerRecord, PodRecord};

#[derive(Debug)]
pub(crate) enum Step<'a> {
    RunPod(&'a PodRecord),
    StopPod(&'a PodRecord),
    RemovePod(&'a PodRecord),
    CreateContainer(&'a ContainerPlan),
    StartContainer(&'a ContainerRecord),
    UpdateContainer(&'a ContainerRecord, &'a ContainerUpdate),
    StopContainer(&'a ContainerRecord),
    RemoveContainer(&'a ContainerRecord),
}

impl Step<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::RunPod(_) => "run pod",
            Self::StopPod(_) => "stop pod",
            Self::RemovePod(_) => "remove pod",
            Self::CreateContainer(_) => "create container",
            Self::StartContainer(_) => "start container",
            Self::UpdateContainer(..) => "update container",
            Self::StopContainer(_) => "stop container",
            Self::RemoveContainer(_) => "remove container",
        }
    }

    fn ids(&self) -> (&PodId, Option<&ContainerId>) {
        match self {
            Self::RunPod(pod) | Self::StopPod(pod) | Self::RemovePod(pod) => (&pod.id, None),
            Self::CreateContainer(plan) => (&plan.identity.pod.id, Some(&plan.identity.id)),
            Self::StartContainer(record)
            | Self::UpdateContainer(record, _)
            | Self::StopContainer(record)
            | Self::RemoveContainer(record) => (&record.pod, Some(&record.id)),
        }
    }
}

impl Runtime {
    pub(super) fn at_step(&self, step: &Step<'_>) {
        let (pod, container) = step.ids();
        match (container, step) {
            (Some(container), Step::UpdateContainer(_, update)) => {
                tracing::debug!(step = step.name(), %pod, %container, limits = ?update.limits, "reached a step in the life of a container");
            }
            (Some(container), _) => {
                tracing::debug!(step = step.name(), %pod, %container, "reached a step in the life of a container")
            }
            (None, _) => tracing::debug!(step = step.name(), %pod, "reached a step in the life of a pod"),
        }
    }
}
