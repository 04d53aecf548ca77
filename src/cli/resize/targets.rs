//! The pod and containers of a resize, with their current and new limits.

use cgroup::Cgroup;
use cri_api::v1;
use model::pod_resources::{PodResourceConfig, Resources, Source};
use model::resources::{Bytes, CpuPeriod, CpuQuota, CpuSet, CpuShares, LimitsPatch, MemoryLimit, ObservedLimits};

use super::super::client::{Cri, call};
use super::super::command::CommandError;
use super::super::target::Target;
use super::super::units::PERIOD;
use super::super::verbose_info::{ContainerInfo, PodInfo, VerboseInfo};
use super::super::{cgroup_files, verbose_info};
use super::change_arg::{Change, Named};
use super::forecast::Forecast;
use super::order::{LimitsChange, Step};
use super::pod_limits::pod_limits_after;
use super::{ResizeError, order};

/// A container of the resize.
#[derive(Debug)]
pub(super) struct ContainerTarget {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) group: Cgroup,
    pub(super) size: LimitsChange,
    /// Requests and limits of the pod spec, before and after; None if the client did not send them.
    pub(super) stated: Option<(Resources, Resources)>,
}

#[derive(Debug)]
pub(super) struct PodTarget {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) group: Cgroup,
    pub(super) size: LimitsChange,
    pub(super) ours: bool,
    announced: Option<PodResourceConfig>,
}

#[derive(Debug)]
pub(super) struct Targets {
    pub(super) pod: PodTarget,
    pub(super) containers: Vec<ContainerTarget>,
    /// New declared resources of the pod (KEP-4112), if they change.
    pub(super) declared: Option<PodResourceConfig>,
    /// Values that the kernel cannot enforce as given.
    pub(super) warnings: Vec<String>,
}

impl Targets {
    pub(super) async fn of_container(cri: &Cri, id: &str, change: Change) -> Result<Self, ResizeError> {
        let (member, pod) = member(cri, id, &change).await?;
        let warnings = change.warnings(period(&member.size.now), node_cpus());
        Ok(Self { pod: self::pod(cri, &pod).await?, containers: vec![member], declared: None, warnings })
    }

    pub(super) async fn of_pod(cri: &Cri, id: &str, changes: Vec<Named>) -> Result<Self, ResizeError> {
        let pod = pod(cri, id).await?;
        let mut listed = list_containers(cri, id).await?;
        // The last attempt first: a name refers to that one.
        listed.sort_by_key(|one| std::cmp::Reverse(one.metadata.as_ref().map(|meta| meta.attempt)));
        let name_of = |one: &v1::Container| one.metadata.as_ref().map(|meta| meta.name.clone()).unwrap_or_default();
        let (mut containers, mut warnings): (Vec<ContainerTarget>, Vec<String>) = (Vec::new(), Vec::new());
        for Named { name, change } in changes {
            if containers.iter().any(|member| member.name == name) {
                return Err(ResizeError::Twice(name));
            }
            let Some(found) = listed.iter().find(|one| name_of(one) == name) else {
                let has = listed.iter().map(name_of).collect();
                return Err(ResizeError::NoSuchContainer { pod: pod.name, name, has });
            };
            let (member, _) = member(cri, &found.id, &change).await?;
            let of_member = change.warnings(period(&member.size.now), node_cpus());
            warnings.extend(of_member.iter().map(|text| format!("{name}: {text}")));
            containers.push(member);
        }
        Ok(Self { pod, containers, declared: None, warnings })
    }

    /// Returns the forecast of a container, or of a pod and its containers with processes.
    pub(super) async fn forecasts(cri: &Cri, target: &Target, probe: bool) -> Result<Vec<Forecast>, ResizeError> {
        let of_container = async |id: &str| {
            let (status, _, group) = container_status(cri, id).await?;
            let name = status.metadata.map(|meta| meta.name).unwrap_or_default();
            Ok::<_, ResizeError>(Forecast::of("container", name, status.id, &group, probe)?)
        };
        let id = match target {
            Target::Container(id) => return Ok(vec![of_container(id).await?]),
            Target::Pod(id) => id,
        };
        let pod = pod(cri, id).await?;
        // The containers are probed, not the pod again.
        let mut forecasts = vec![Forecast::of("pod", pod.name, pod.id, &pod.group, false)?];
        for listed in list_containers(cri, id).await? {
            if matches!(listed.state(), v1::ContainerState::ContainerRunning) {
                forecasts.push(of_container(&listed.id).await?);
            }
        }
        Ok(forecasts)
    }

    /// Computes the new limits of the pod, and its new declared resources, which also affect its limits.
    pub(super) fn size_pod(&mut self, asked: &Change, keep: bool) -> Result<(), ResizeError> {
        self.declared = self.describe().filter(|_| !keep);
        if !self.pod.ours {
            let clients = || ResizeError::ClientsPod(self.pod.group.path().as_str().to_owned());
            return if asked.is_empty() { Ok(()) } else { Err(clients()) };
        }
        let moves: Vec<LimitsChange> = self.containers.iter().map(|member| member.size.clone()).collect();
        let follows = if keep { LimitsPatch::default() } else { pod_limits_after(&self.pod.size.now, &moves) };
        let period = period(&self.pod.size.now);
        self.pod.size.to = follows.merged(&asked.patch(period)?);
        self.warnings.extend(asked.warnings(period, node_cpus()).iter().map(|text| format!("pod: {text}")));
        Ok(())
    }

    /// Returns the new declared resources, if a request declared them; those of an annotation cannot be updated.
    fn describe(&self) -> Option<PodResourceConfig> {
        let had = self.pod.announced.clone().filter(|announced| announced.source == Source::Request)?;
        let mut then = had.clone();
        for container in &mut then.containers {
            let member = self.containers.iter().find(|member| member.name == container.name);
            if let Some((_, stated)) = member.and_then(|member| member.stated.as_ref()) {
                container.resources = Some(stated.clone());
            }
        }
        (then != had).then_some(then)
    }

    pub(super) fn steps(&self) -> Vec<Step> {
        let moves: Vec<LimitsChange> = self.containers.iter().map(|member| member.size.clone()).collect();
        order::steps(&self.pod.size, &moves)
    }
}

/// Returns the number of online CPUs of the node; None if the kernel's list cannot be read.
fn node_cpus() -> Option<u64> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    u64::try_from(CpuSet::new(&online).ok()?.members().count()).ok()
}

async fn list_containers(cri: &Cri, pod: &str) -> Result<Vec<v1::Container>, CommandError> {
    let filter = v1::ContainerFilter { pod_sandbox_id: pod.to_owned(), ..Default::default() };
    let response = cri.runtime().list_containers(v1::ListContainersRequest { filter: Some(filter) }).await;
    Ok(response.map_err(call("listing containers"))?.into_inner().containers)
}

async fn container_status(cri: &Cri, id: &str) -> Result<(v1::ContainerStatus, ContainerInfo, Cgroup), CommandError> {
    let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    let response = cri.runtime().container_status(request).await.map_err(call("reading the container's status"))?;
    let v1::ContainerStatusResponse { status, info } = response.into_inner();
    let info: ContainerInfo = verbose_info::read(&info)?;
    let group = cgroup_files::group(&cgroup_files::layout()?, &info.cgroup)?;
    Ok((status.unwrap_or_default(), info, group))
}

async fn member(cri: &Cri, id: &str, change: &Change) -> Result<(ContainerTarget, String), ResizeError> {
    let (status, info, group) = container_status(cri, id).await?;
    let state = match status.state() {
        v1::ContainerState::ContainerExited => Some("exited"),
        v1::ContainerState::ContainerUnknown => Some("in an unknown state"),
        v1::ContainerState::ContainerCreated | v1::ContainerState::ContainerRunning => None,
    };
    let name = status.metadata.map(|meta| meta.name).unwrap_or_default();
    if let Some(state) = state {
        return Err(ResizeError::NotAlive { name, state });
    }
    let shown = status.resources.and_then(|resources| resources.linux).unwrap_or_default();
    let now = in_force(&shown);
    let size = LimitsChange { to: change.patch(period(&now))?, now };
    let stated = info.config.kubernetes_resources.map(|had| {
        let then = change.stated(&had);
        (had, then)
    });
    Ok((ContainerTarget { id: status.id, name, group, size, stated }, info.pod))
}

async fn pod(cri: &Cri, id: &str) -> Result<PodTarget, CommandError> {
    let ask = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
    let answer = cri.runtime().pod_sandbox_status(ask).await.map_err(call("reading the pod's status"))?.into_inner();
    let info: PodInfo = verbose_info::read(&answer.info)?;
    let status = answer.status.unwrap_or_default();
    let name = status.metadata.map(|meta| meta.name).unwrap_or_default();
    let group = cgroup_files::group(&cgroup_files::layout()?, &info.cgroup.path)?;
    let size = LimitsChange { now: pod_size(&info.resources), to: LimitsPatch::default() };
    let (ours, announced) = (info.cgroup.ours, info.config.pod_resources);
    Ok(PodTarget { id: status.id, name, group, size, ours, announced })
}

fn period(now: &LimitsPatch) -> CpuPeriod {
    let usual = || i64::try_from(PERIOD).ok().and_then(|period| CpuPeriod::new(period).ok());
    // The default is a valid period.
    now.cpu_period.or_else(usual).unwrap_or_else(|| unreachable!("the default period is valid"))
}

/// Converts a container's limits from its status: the requested value where the kernel has it, else the kernel's.
fn in_force(shown: &v1::LinuxContainerResources) -> LimitsPatch {
    let memory = |field, value| match value {
        0 => Some(MemoryLimit::Unlimited),
        value => MemoryLimit::new(field, value).ok(),
    };
    LimitsPatch {
        cpu_quota: Some(CpuQuota::new(shown.cpu_quota).unwrap_or(CpuQuota::Unlimited)),
        cpu_period: CpuPeriod::new(shown.cpu_period).ok(),
        cpu_shares: CpuShares::new(shown.cpu_shares).ok(),
        memory: memory("memory", shown.memory_limit_in_bytes),
        memory_swap: memory("memory-swap", shown.memory_swap_limit_in_bytes),
        cpuset_cpus: CpuSet::new(&shown.cpuset_cpus).ok(),
        cpuset_mems: CpuSet::new(&shown.cpuset_mems).ok(),
        ..LimitsPatch::default()
    }
}

/// Returns the kernel's limits of a pod, without the pod overhead. Shares count only if they were
/// requested; otherwise they are the kernel's default.
fn pod_size(info: &VerboseInfo) -> LimitsPatch {
    let ObservedLimits { cpu_quota, cpu_period, memory, .. } = info.actual.clone().unwrap_or_default();
    let overhead = info.overhead.clone().unwrap_or_default();
    let period = cpu_period.and_then(|micros| CpuPeriod::new(i64::try_from(micros.0).ok()?).ok());
    let beside = overhead.memory.and_then(MemoryLimit::bytes).map_or(0, |Bytes(bytes)| bytes);
    let overhead_period = overhead.cpu_period.map_or(PERIOD, |period| period.micros().0);
    let per_period = period.map_or(PERIOD, |period| period.micros().0);
    let cpu_beside = match overhead.cpu_quota {
        Some(CpuQuota::Micros(micros)) => (micros.0 * per_period).div_ceil(overhead_period),
        Some(CpuQuota::Unlimited) | None => 0,
    };
    LimitsPatch {
        cpu_quota: Some(cpu_quota.map_or(CpuQuota::Unlimited, |micros| {
            CpuQuota::Micros(model::resources::Micros(micros.0.saturating_sub(cpu_beside)))
        })),
        cpu_period: period,
        cpu_shares: info.asked.cpu_shares,
        memory: Some(
            memory
                .map_or(MemoryLimit::Unlimited, |Bytes(bytes)| MemoryLimit::Bytes(Bytes(bytes.saturating_sub(beside)))),
        ),
        ..LimitsPatch::default()
    }
}
