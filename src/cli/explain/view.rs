//! The data that `crisp explain` shows of a pod or container.

use cgroup::{Cgroup, EffectiveLimits};
use cri_api::v1;
use model::pod_resources::{PodResourceConfig, Resources};
use serde::Serialize;

use super::super::cgroup_files::Row;
use super::super::verbose_info::{ContainerInfo, PodInfo, VerboseInfo};
use super::super::{cgroup_files, units};
use super::inside::Inside;
use super::list::Entry;

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum View {
    Container(Box<ContainerView>),
    Pod(Box<PodView>),
    List(Vec<Entry>),
}

#[derive(Debug, Serialize)]
pub(super) struct ContainerView {
    /// `container`.
    pub(super) kind: &'static str,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) pod: String,
    pub(super) state: &'static str,
    pub(super) pid: Option<u32>,
    /// Set if the container has exited.
    pub(super) ended: Option<Ended>,
    pub(super) cgroup: String,
    /// Whether the cgroup exists; if so, `actual` is the content of its files.
    pub(super) has_cgroup: bool,
    pub(super) files: Vec<Row>,
    /// The lowest limits of the cgroup and all above it.
    pub(super) effective: Option<EffectiveLimits>,
    pub(super) oom_score: Option<Score>,
    /// Requests and limits of the pod spec (KEP-4112), if the client sent them.
    pub(super) kubernetes: Option<Resources>,
    /// With --inside, if the container runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inside: Option<Inside>,
}

#[derive(Debug, Serialize)]
pub(super) struct Ended {
    pub(super) code: i32,
    pub(super) reason: String,
    pub(super) message: String,
    /// Nanoseconds since 1970.
    pub(super) at: i64,
}

#[derive(Debug, Serialize)]
pub(super) struct Score {
    pub(super) asked: Option<i16>,
    pub(super) actual: Option<i16>,
}

#[derive(Debug, Serialize)]
pub(super) struct PodView {
    /// `pod`.
    pub(super) kind: &'static str,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) state: &'static str,
    pub(super) cgroup: String,
    /// Creator of the cgroup, which also sets its limits: `crisp` or `client`.
    pub(super) owner: &'static str,
    pub(super) has_cgroup: bool,
    pub(super) files: Vec<Row>,
    /// The lowest limits of the cgroup and all above it.
    pub(super) effective: Option<EffectiveLimits>,
    /// Pod overhead, as text.
    pub(super) overhead: Option<String>,
    /// Declared resources of the pod and its containers (KEP-4112).
    pub(super) announced: Option<PodResourceConfig>,
    pub(super) containers: Vec<ContainerView>,
}

pub(super) fn container(
    status: v1::ContainerStatus,
    info: &ContainerInfo,
    group: &Cgroup,
    inside: Option<Inside>,
) -> ContainerView {
    let state = status.state();
    let ended = (state == v1::ContainerState::ContainerExited).then(|| Ended {
        code: status.exit_code,
        reason: status.reason.clone(),
        message: status.message.clone(),
        at: status.finished_at,
    });
    ContainerView {
        kind: "container",
        name: status.metadata.map(|meta| meta.name).unwrap_or_default(),
        pod: info.pod.clone(),
        state: match state {
            v1::ContainerState::ContainerCreated => "created",
            v1::ContainerState::ContainerRunning => "running",
            v1::ContainerState::ContainerExited => "exited",
            v1::ContainerState::ContainerUnknown => "unknown",
        },
        pid: info.pid,
        ended,
        cgroup: info.cgroup.clone(),
        has_cgroup: group.exists(),
        files: cgroup_files::rows(group, &info.resources),
        effective: info.resources.effective.clone(),
        oom_score: score(&info.resources),
        kubernetes: info.config.kubernetes_resources.clone(),
        inside,
        id: status.id,
    }
}

fn score(info: &VerboseInfo) -> Option<Score> {
    let asked = info.asked.oom_score_adj.map(|score| score.get());
    let actual = info.actual.as_ref().and_then(|actual| actual.oom_score_adj).map(|score| score.get());
    (asked.is_some() || actual.is_some()).then_some(Score { asked, actual })
}

pub(super) fn pod(
    status: v1::PodSandboxStatus,
    info: &PodInfo,
    group: &Cgroup,
    containers: Vec<ContainerView>,
) -> PodView {
    let state = match status.state() {
        v1::PodSandboxState::SandboxReady => "ready",
        v1::PodSandboxState::SandboxNotready => "not ready",
    };
    let meta = status.metadata.unwrap_or_default();
    PodView {
        kind: "pod",
        id: status.id,
        name: meta.name,
        namespace: meta.namespace,
        state,
        cgroup: info.cgroup.path.clone(),
        owner: if info.cgroup.ours { "crisp" } else { "client" },
        has_cgroup: group.exists(),
        files: cgroup_files::rows(group, &info.resources),
        effective: info.resources.effective.clone(),
        overhead: overhead(&info.resources),
        announced: info.config.pod_resources.clone(),
        containers,
    }
}

fn overhead(info: &VerboseInfo) -> Option<String> {
    let overhead = info.overhead.as_ref()?;
    let cpu = overhead.cpu_quota.map(|quota| format!("cpu {}", units::cpus(quota, overhead.cpu_period)));
    let memory = overhead.memory.map(|memory| format!("memory {}", units::memory(memory)));
    let parts: Vec<String> = [cpu, memory].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
