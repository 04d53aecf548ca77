//! ListPodSandboxMetrics and its stream: all counters of the kernel for each container, in one
//! pass.

use std::sync::Arc;

use cgroup::{CurrentLimits, ReadBuffer};
use model::error_chain::chain;
use model::metrics::{ContainerCounters, FileSystem};
use model::stats::NetworkUsage;

use super::block_devices::Devices;
use super::{Container, StatsError, block_devices, parallel, processes};
use crate::runtime::Runtime;
use crate::store::{ContainerRecord, PodRecord};

/// A container, its counters and its limits in the kernel.
#[derive(Debug)]
pub(crate) struct ContainerMetrics {
    pub(crate) record: Arc<ContainerRecord>,
    pub(crate) counters: ContainerCounters,
    /// `None` without a cgroup.
    pub(crate) limits: Option<CurrentLimits>,
}

/// The network of a pod, and its containers.
#[derive(Debug)]
pub(crate) struct PodMetrics {
    pub(crate) record: Arc<PodRecord>,
    pub(crate) network: Option<NetworkUsage>,
    pub(crate) containers: Vec<ContainerMetrics>,
}

/// All ready pods, and what they share.
#[derive(Debug)]
pub(crate) struct MetricsSnapshot {
    pub(crate) pods: Vec<PodMetrics>,
    /// The directory of all writable layers.
    pub(crate) writables: Option<FileSystem>,
    pub(crate) devices: Devices,
}

impl Runtime {
    /// Returns the metrics of all ready pods. Containers whose counters cannot be read are logged
    /// and left out, exited ones left out.
    pub(crate) fn list_metrics(&self) -> MetricsSnapshot {
        let pods = self.ready_pods(&self.pods());
        let mut list = parallel::read(&pods, |part| {
            let mut scratch = ReadBuffer::default();
            let read = part.iter().map(|(entry, containers)| PodMetrics {
                record: entry.get(),
                network: None,
                containers: self.container_metrics_of_pods(containers, &mut scratch),
            });
            read.collect()
        });
        let records: Vec<_> = list.iter().map(|pod| pod.record.clone()).collect();
        let mut networks = self.networks_of(&records);
        let mut devices = Devices::default();
        for pod in &mut list {
            pod.network = networks.remove(&pod.record.id);
            let io = pod.containers.iter().flat_map(|container| &container.counters.group.io);
            io.for_each(|device| devices.learn(device.major, device.minor));
        }
        MetricsSnapshot { pods: list, writables: block_devices::file_system(&self.layout.writable_layers()), devices }
    }

    fn container_metrics_of_pods(&self, entries: &[Container], scratch: &mut ReadBuffer) -> Vec<ContainerMetrics> {
        let mut list = Vec::with_capacity(entries.len());
        for entry in entries {
            match self.container_metrics(entry, scratch) {
                Ok(Some(metered)) => list.push(metered),
                Ok(None) => {}
                Err(error) => {
                    let _names = self.container_record_span(&entry.get()).entered();
                    tracing::warn!(
                        error = chain(&error),
                        "cannot read the metrics of a container; ListPodSandboxMetrics omits that container"
                    );
                }
            }
        }
        list
    }

    /// Returns `None` if the cgroup was removed.
    fn container_metrics(
        &self,
        entry: &Container,
        scratch: &mut ReadBuffer,
    ) -> Result<Option<ContainerMetrics>, StatsError> {
        let record = entry.get();
        let container = || record.id.clone();
        let gauges = entry.samples();
        let cgroup = self.cgroup_of(entry);
        let read = cgroup.counters(scratch);
        let read = read.map_err(|source| StatsError::Container { container: container(), source })?;
        let Some(group) = read else { return Ok(None) };
        let members = cgroup.members();
        let members = members.map_err(|source| StatsError::Members { container: container(), source })?;
        let processes = processes::count(&members, record.state.pid());
        let limits = self.limits(entry, &record);
        let counters = ContainerCounters { group, processes, writable: gauges.disk.known() };
        Ok(Some(ContainerMetrics { record, counters, limits }))
    }
}
