//! ContainerStats, PodSandboxStats, their lists and streams: current resource usage. [`metrics`]
//! has all other counters.
//!
//! These functions read files of the kernel, so callers run them on threads that may block. They do
//! not wait for other operations on a container. Disk usage is measured by [`disk_usage`] in the
//! background.

mod block_devices;
mod disk_usage;
mod disk_walk;
mod metrics;
mod network;
mod parallel;
mod processes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cgroup::{MemoryAbove, ReadBuffer};
use model::error_chain::chain;
use model::stats::{ContainerStats, GroupUsage, NetworkUsage, PodStats};
use model::{ContainerId, ErrorClass, ErrorKind, PodId, PodState};

use super::{LookupError, Runtime};
use crate::store::cpu_rate::CpuSamples;
use crate::store::{ContainerRecord, Entry, PodRecord};

pub(crate) use block_devices::Devices;
pub(super) use disk_usage::DiskUsageMeter;
pub(crate) use metrics::{ContainerMetrics, MetricsSnapshot, PodMetrics};

/// The time that a response waits for layers without a value.
const FIRST_WITHIN: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub(crate) enum StatsError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("reading the resource usage of container {container}")]
    Container { container: ContainerId, source: cgroup::ReadError },
    #[error("reading the resource usage of pod {pod}")]
    Pod { pod: PodId, source: cgroup::ReadError },
    #[error("counting the processes of container {container}")]
    Members { container: ContainerId, source: cgroup::CgroupError },
}

impl ErrorClass for StatsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::Container { source, .. } | Self::Pod { source, .. } => source.kind(),
            Self::Members { source, .. } => source.kind(),
        }
    }
}

/// Shared by the items of a list.
#[derive(Debug, Default)]
struct StatsBuffers {
    files: ReadBuffer,
    above: MemoryAbove,
}

/// A container and its usage.
#[derive(Debug)]
pub(crate) struct ContainerStatsEntry {
    pub(crate) record: Arc<ContainerRecord>,
    pub(crate) stats: ContainerStats,
}

/// A pod, its usage, and that of its containers.
#[derive(Debug)]
pub(crate) struct PodStatsEntry {
    pub(crate) record: Arc<PodRecord>,
    pub(crate) stats: PodStats,
    pub(crate) containers: Vec<ContainerStatsEntry>,
}

type Container = Arc<Entry<ContainerRecord>>;
type Pod = Arc<Entry<PodRecord>>;

impl Runtime {
    /// Returns the usage of a container, also of an exited one, which still has a writable layer.
    pub(crate) fn container_stats(&self, id: &str) -> Result<ContainerStatsEntry, StatsError> {
        let entry = self.container_entry(id)?;
        self.measure(std::slice::from_ref(&entry));
        self.container_stats_entry(&entry, &mut StatsBuffers::default())
    }

    /// Returns the usage of the containers of `wanted` that have processes. Containers whose usage
    /// cannot be read are logged and left out: without memory a container would seem to use none.
    pub(crate) fn list_container_stats(&self, wanted: &[Arc<ContainerRecord>]) -> Vec<ContainerStatsEntry> {
        let find = |record: &Arc<ContainerRecord>| self.containers.find(record.id.as_str()).ok().flatten();
        let entries = alive(wanted.iter().filter_map(find));
        self.measure(&entries);
        parallel::read(&entries, |part| self.container_stats_entries(part, &mut StatsBuffers::default()))
    }

    /// Returns the usage of a pod; of a pod that is not ready, what still exists.
    pub(crate) fn pod_stats(&self, id: &str) -> Result<PodStatsEntry, StatsError> {
        let entry = self.pod_entry(id)?;
        let mut buffers = StatsBuffers::default();
        let containers = alive(self.containers_of(&entry.get().id));
        self.measure(&containers);
        let stats = self.pod_usage(&entry, &mut buffers)?;
        let mut seen = [self.pod_stats_entry(&entry, stats, &containers, &mut buffers)];
        self.add_networks(&mut seen);
        let [seen] = seen;
        Ok(seen)
    }

    /// Returns the usage of the ready pods of `wanted`. Pods whose usage cannot be read are logged
    /// and left out.
    pub(crate) fn list_pod_stats(&self, wanted: &[Arc<PodRecord>]) -> Vec<PodStatsEntry> {
        let pods = self.ready_pods(wanted);
        let mut list = parallel::read(&pods, |part| self.pod_stats_entries(part, &mut StatsBuffers::default()));
        self.add_networks(&mut list);
        list
    }

    /// Returns the ready pods of `wanted` with their containers that have processes, and queues old
    /// measurements of their layers.
    fn ready_pods(&self, wanted: &[Arc<PodRecord>]) -> Vec<(Pod, Vec<Container>)> {
        let find = |record: &Arc<PodRecord>| self.pods.find(record.id.as_str()).ok().flatten();
        let ready = wanted.iter().filter_map(find).filter(|entry| entry.get().state == PodState::Ready);
        let mut pods: BTreeMap<PodId, (Pod, Vec<Container>)> =
            ready.map(|entry| (entry.get().id.clone(), (entry, Vec::new()))).collect();
        let mut all = alive(self.containers.all());
        all.retain(|container| pods.contains_key(&container.get().pod));
        self.measure(&all);
        for container in all {
            if let Some((_, own)) = pods.get_mut(&container.get().pod) {
                own.push(container);
            }
        }
        pods.into_values().collect()
    }

    fn pod_stats_entries(&self, pods: &[(Pod, Vec<Container>)], buffers: &mut StatsBuffers) -> Vec<PodStatsEntry> {
        let mut list = Vec::with_capacity(pods.len());
        for (entry, containers) in pods {
            match self.pod_usage(entry, buffers) {
                Ok(stats) => list.push(self.pod_stats_entry(entry, stats, containers, buffers)),
                Err(error) => {
                    let _names = Self::pod_record_span(&entry.get()).entered();
                    tracing::warn!(error = chain(&error), "cannot read the stats of a pod; the list of stats omits it");
                }
            }
        }
        list
    }

    fn container_stats_entries(&self, entries: &[Container], buffers: &mut StatsBuffers) -> Vec<ContainerStatsEntry> {
        let mut list = Vec::with_capacity(entries.len());
        for entry in entries {
            match self.container_stats_entry(entry, buffers) {
                Ok(seen) if seen.stats.group.is_some() => list.push(seen),
                Ok(_) => {}
                Err(error) => {
                    let _names = self.container_record_span(&entry.get()).entered();
                    tracing::warn!(
                        error = chain(&error),
                        "cannot read the stats of a container; the list of stats omits it"
                    );
                }
            }
        }
        list
    }

    fn container_stats_entry(
        &self,
        entry: &Container,
        buffers: &mut StatsBuffers,
    ) -> Result<ContainerStatsEntry, StatsError> {
        let record = entry.get();
        let container = || record.id.clone();
        let cgroup = self.cgroup_of(entry);
        let gauges = entry.samples();
        let read = self.usage(cgroup, &gauges.cpu, buffers);
        let (group, nano_cores) = read.map_err(|source| StatsError::Container { container: container(), source })?;
        Ok(ContainerStatsEntry { record, stats: ContainerStats { group, nano_cores, writable: gauges.disk.known() } })
    }

    /// Returns the usage of a cgroup, and its CPU usage per second. The available memory is the least of all levels.
    fn usage(
        &self,
        cgroup: &cgroup::Cgroup,
        gauge: &CpuSamples,
        buffers: &mut StatsBuffers,
    ) -> Result<(Option<GroupUsage>, Option<u64>), cgroup::ReadError> {
        let now = Instant::now();
        let StatsBuffers { files, above } = buffers;
        let mut group = cgroup.usage(files)?;
        if let Some(memory) = group.as_mut().and_then(|group| group.memory.as_mut()) {
            memory.available = above.left(cgroup, memory.available, |level| self.level_files.of(level), files)?;
        }
        let nano_cores = group.as_ref().and_then(|group| group.cpu).and_then(|used| gauge.note(now, used));
        Ok((group, nano_cores))
    }

    /// Returns the usage of a pod without its network, which is read for all pods at once.
    fn pod_usage(&self, entry: &Pod, buffers: &mut StatsBuffers) -> Result<PodStats, StatsError> {
        let record = entry.get();
        let pod = || record.id.clone();
        let cgroup = self.cgroup_of(entry);
        let failed = |source| StatsError::Pod { pod: pod(), source };
        let (group, nano_cores) = self.usage(cgroup, &entry.samples().cpu, buffers).map_err(failed)?;
        let tasks = cgroup.tasks(&mut buffers.files).map_err(failed)?;
        Ok(PodStats { group, nano_cores, tasks, network: None })
    }

    fn pod_stats_entry(
        &self,
        entry: &Pod,
        stats: PodStats,
        containers: &[Container],
        buffers: &mut StatsBuffers,
    ) -> PodStatsEntry {
        PodStatsEntry { record: entry.get(), stats, containers: self.container_stats_entries(containers, buffers) }
    }

    /// Queues old measurements of writable layers.
    fn measure(&self, entries: &[Container]) {
        let dir = |record: &ContainerRecord| self.layout.writable_layer(&record.id);
        self.meter.request(entries, FIRST_WITHIN, dir, |record| self.pod(record.pod.as_str()).ok());
    }

    fn add_networks(&self, pods: &mut [PodStatsEntry]) {
        let records: Vec<_> = pods.iter().map(|pod| pod.record.clone()).collect();
        let mut networks = self.networks_of(&records);
        for pod in pods {
            pod.stats.network = networks.remove(&pod.record.id);
        }
    }

    /// Returns the network usage of the pods that have a network namespace.
    fn networks_of(&self, pods: &[Arc<PodRecord>]) -> BTreeMap<PodId, NetworkUsage> {
        let own = pods.iter().filter(|pod| pod.state == PodState::Ready);
        let own = own.filter_map(|pod| Some((&pod.id, pod.sandbox.network.as_deref()?)));
        let (ids, paths): (Vec<_>, Vec<_>) = own.unzip();
        let networks = match network::read(&paths) {
            Ok(networks) => networks,
            Err(error) => {
                tracing::warn!(%error, "cannot read the network statistics of pods; the pods' stats omit them");
                return BTreeMap::new();
            }
        };
        let known = ids.into_iter().zip(networks);
        known.filter_map(|(id, read)| Some((id.clone(), self.network_or_none(id, read)?))).collect()
    }

    fn network_or_none(&self, pod: &PodId, read: std::io::Result<Option<NetworkUsage>>) -> Option<NetworkUsage> {
        let still_ready = || self.pod(pod.as_str()).is_ok_and(|pod| pod.state == PodState::Ready);
        match read {
            Ok(network) => network,
            Err(error) => {
                // The network of a pod that is being stopped is removed before the stop is
                // recorded.
                if still_ready() {
                    let _names = self.pod_span(pod).entered();
                    tracing::warn!(%error, "cannot read the pod's network statistics; the pod's stats omit them");
                }
                None
            }
        }
    }
}

/// Returns the containers that have processes.
fn alive(entries: impl IntoIterator<Item = Container>) -> Vec<Container> {
    entries.into_iter().filter(|entry| entry.get().state.pid().is_some()).collect()
}
