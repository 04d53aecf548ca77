//! Effective limits of pods and containers: the cgroup crate walks the levels, this adds the time of the last hit of a
//! memory limit, and the list for metrics. Only verbose status and metrics walk all files of all levels.

mod level_files;
mod limit_hits;
mod refused_shrinks;

use std::collections::BTreeMap;
use std::time::SystemTime;

use cgroup::{Cgroup, EffectiveLimits, LevelReadings, ShrinkForecast};
use model::error_chain::chain;
use model::{CgroupPath, PodId};

use super::Runtime;
use crate::store::ContainerRecord;

pub(crate) use level_files::LevelFiles;
pub(crate) use limit_hits::LimitHitTimes;
pub(crate) use refused_shrinks::RefusedShrinks;

/// Containers in the metrics; the rest is left out.
const LISTED_MAX: usize = 1000;

/// The names of a container in metrics.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ContainerNames {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
}

impl Runtime {
    /// Returns the effective limits of a container in the pod with the cgroup `pod`, or of that pod. `None` if files
    /// of a level cannot be read, which is logged.
    pub(super) fn effective_limits(
        &self,
        group: &CgroupPath,
        pod: &CgroupPath,
        levels: &mut LevelReadings,
    ) -> Option<EffectiveLimits> {
        let group = Cgroup::new(self.cgroups.clone(), group.clone());
        match levels.effective(&group, pod) {
            Ok(mut limits) => {
                let last = self.limit_hits.note(&limits.memory_hits, SystemTime::now());
                limits.last_memory_hit = last.or(limits.last_memory_hit);
                Some(limits)
            }
            Err(error) => {
                let cgroup = group.path();
                tracing::warn!(%cgroup, error = chain(&error), "cannot read the effective limits of a cgroup; status and metrics omit them");
                None
            }
        }
    }

    /// Returns the cgroup of a container's pod.
    pub(super) fn pod_cgroup_of(&self, container: &ContainerRecord) -> CgroupPath {
        let parent = || container.cgroup.parents().next().unwrap_or_else(|| container.cgroup.clone());
        self.pod(container.pod.as_str()).map_or_else(|_| parent(), |pod| pod.cgroup.path.clone())
    }

    /// Returns the effective limits of the containers with processes. Of two with the same names, as when a pod is
    /// replaced, the one that was created last is listed.
    pub(crate) fn list_effective_limits(&self) -> BTreeMap<ContainerNames, EffectiveLimits> {
        let mut alive: Vec<_> = self.containers().into_iter().filter(|record| record.state.pid().is_some()).collect();
        alive.sort_by_key(|record| record.created);
        let mut chosen = BTreeMap::new();
        for record in alive {
            if let Some(names) = self.names(&record.pod, &record) {
                chosen.insert(names, record);
            }
        }
        let mut levels = LevelReadings::default();
        let read = |(names, record): (ContainerNames, std::sync::Arc<ContainerRecord>)| {
            let limits = self.effective_limits(&record.cgroup, &self.pod_cgroup_of(&record), &mut levels)?;
            Some((names, limits))
        };
        chosen.into_iter().take(LISTED_MAX).filter_map(read).collect()
    }

    /// Returns the forecast of the last shrink of each container that was refused, until a later change succeeds.
    pub(crate) fn list_refused_shrinks(&self) -> BTreeMap<ContainerNames, ShrinkForecast> {
        let named = |(id, forecast): (String, ShrinkForecast)| {
            let record = self.container(&id).ok()?;
            Some((self.names(&record.pod, &record)?, forecast))
        };
        self.refused_shrinks.all().into_iter().filter_map(named).collect()
    }

    fn names(&self, pod: &PodId, container: &ContainerRecord) -> Option<ContainerNames> {
        let pod = self.pod(pod.as_str()).ok()?;
        Some(ContainerNames {
            namespace: pod.spec.meta.namespace.clone(),
            pod: pod.spec.meta.name.clone(),
            container: container.spec.meta.name.clone(),
        })
    }
}
