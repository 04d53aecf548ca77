//! Looking things up. Nothing here waits for anything.

use std::sync::Arc;

use model::resources::Observed;
use model::{Classed, Kind, PodId};

use super::Runtime;
use crate::store::{Ambiguous, ContainerRecord, Entry, PodRecord};

#[derive(Debug, thiserror::Error)]
pub(crate) enum LookError {
    #[error("there is no pod {0:?}")]
    NoSuchPod(String),
    #[error("there is no container {0:?}")]
    NoSuchContainer(String),
    #[error(transparent)]
    Ambiguous(#[from] Ambiguous),
}

impl Classed for LookError {
    fn kind(&self) -> Kind {
        match self {
            Self::NoSuchPod(_) | Self::NoSuchContainer(_) => Kind::NotFound,
            Self::Ambiguous(_) => Kind::Invalid,
        }
    }
}

impl Runtime {
    pub(super) fn pod_entry(&self, id: &str) -> Result<Arc<Entry<PodRecord>>, LookError> {
        self.pods.find(id)?.ok_or_else(|| LookError::NoSuchPod(id.to_owned()))
    }

    pub(super) fn container_entry(&self, id: &str) -> Result<Arc<Entry<ContainerRecord>>, LookError> {
        self.containers.find(id)?.ok_or_else(|| LookError::NoSuchContainer(id.to_owned()))
    }

    pub(crate) fn pod(&self, id: &str) -> Result<Arc<PodRecord>, LookError> {
        Ok(self.pod_entry(id)?.look())
    }

    pub(crate) fn pods(&self) -> Vec<Arc<PodRecord>> {
        self.pods.all().iter().map(|entry| entry.look()).collect()
    }

    pub(crate) fn container(&self, id: &str) -> Result<Arc<ContainerRecord>, LookError> {
        Ok(self.container_entry(id)?.look())
    }

    pub(crate) fn containers(&self) -> Vec<Arc<ContainerRecord>> {
        self.containers.all().iter().map(|entry| entry.look()).collect()
    }

    pub(super) fn containers_of(&self, pod: &PodId) -> Vec<Arc<Entry<ContainerRecord>>> {
        self.containers.all().into_iter().filter(|entry| entry.look().pod == *pod).collect()
    }

    /// The limits that the kernel has in force for a container; none when it has no cgroup any more.
    pub(crate) fn limits(&self, container: &ContainerRecord) -> Option<Observed> {
        container.phase.pid()?;
        self.cgroup(&container.cgroup).ok()?.observe().ok()
    }
}
