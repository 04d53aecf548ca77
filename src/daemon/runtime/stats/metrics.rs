//! ListPodSandboxMetrics and its stream: every number that the kernel has of each container, in one pass.

use std::sync::Arc;

use cgroup::{CurrentLimits, ReadBuffer};
use model::error_chain::chain;
use model::metrics::{ContainerCounters, FileSystem};
use model::stats::NetworkUsage;

use super::block_devices::Devices;
use super::{Container, StatsError, block_devices, parallel, processes};
use crate::runtime::Runtime;
use crate::store::{ContainerRecord, PodRecord};

/// A container, its counters and the limits in force.
#[derive(Debug)]
pub(crate) struct ContainerMetrics {
    pub(crate) record: Arc<ContainerRecord>,
    pub(crate) counters: ContainerCounters,
    /// Absent where the container has no cgroup any more.
    pub(crate) limits: Option<CurrentLimits>,
}

/// A pod's network, and its containers.
#[derive(Debug)]
pub(crate) struct PodMetrics {
    pub(crate) record: Arc<PodRecord>,
    pub(crate) network: Option<NetworkUsage>,
    pub(crate) containers: Vec<ContainerMetrics>,
}

/// All pods that are ready, and what they share.
#[derive(Debug)]
pub(crate) struct MetricsSnapshot {
    pub(crate) pods: Vec<PodMetrics>,
    /// Where all writable layers are.
    pub(crate) writables: Option<FileSystem>,
    pub(crate) devices: Devices,
}

impl Runtime {
    /// One whose counters cannot be read is told of in the log and left out, as is one that ends meanwhile.
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
                    tracing::warn!(error = chain(&error), "cannot read the metrics of a container; leaving it out")
                }
            }
        }
        list
    }

    /// None where its cgroup is gone.
    fn container_metrics(
        &self,
        entry: &Container,
        scratch: &mut ReadBuffer,
    ) -> Result<Option<ContainerMetrics>, StatsError> {
        let record = entry.get();
        let container = || record.id.clone();
        let gauges = entry.samples();
        let cgroup = self.cgroup(&record.cgroup).with_file_cache(gauges.files.clone());
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
