//! Counts of pods, containers, shims and lost output.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use model::{ContainerState, PodState};

use super::Runtime;

/// A pod or container with limits that another program changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DriftingLimits {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    /// Empty: the limits of the pod itself.
    pub(crate) container: String,
    /// The number of changed files.
    pub(crate) files: usize,
}

/// Pods and containers by state, shims, event clients, and lost bytes.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) ready: u64,
    pub(crate) not_ready: u64,
    pub(crate) created: u64,
    pub(crate) running: u64,
    pub(crate) exited: u64,
    pub(crate) shims: usize,
    pub(crate) listeners: usize,
    pub(crate) log_bytes_lost: u64,
    pub(crate) exec_bytes_dropped: u64,
}

impl Runtime {
    /// Returns pods and containers with such limits, each name once, in order.
    pub(crate) fn drift_by_container(&self) -> Vec<DriftingLimits> {
        let mut all: BTreeMap<(String, String, String), usize> = BTreeMap::new();
        for (id, files) in self.resizes.drifting_files() {
            let container = self.containers.find(&id).ok().flatten().map(|entry| entry.get());
            let pod = container.as_ref().map_or(id.as_str(), |container| container.pod.as_str());
            let Ok(Some(pod)) = self.pods.find(pod) else { continue };
            let meta = &pod.get().spec.meta;
            let container = container.map(|container| container.spec.meta.name.clone()).unwrap_or_default();
            *all.entry((meta.namespace.clone(), meta.name.clone(), container)).or_default() += files;
        }
        let named = |((namespace, pod, container), files)| DriftingLimits { namespace, pod, container, files };
        all.into_iter().map(named).collect()
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut population = Counts {
            shims: self.sandboxes.lock().len(),
            listeners: self.events.listeners(),
            log_bytes_lost: self.log_bytes_lost.load(Ordering::Relaxed),
            exec_bytes_dropped: self.exec_budget.dropped(),
            ..Counts::default()
        };
        for pod in self.pods.all() {
            match pod.get().state {
                PodState::Ready => population.ready += 1,
                PodState::NotReady | PodState::Unreadable => population.not_ready += 1,
            }
        }
        for container in self.containers.all() {
            match container.get().state {
                ContainerState::Created { .. } => population.created += 1,
                ContainerState::Running { .. } => population.running += 1,
                ContainerState::Exited { .. } => population.exited += 1,
            }
        }
        population
    }
}
