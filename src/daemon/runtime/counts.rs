//! Counts of pods, containers, shims and lost output.

use std::sync::atomic::Ordering;

use model::{ContainerState, PodState};

use super::Runtime;

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
