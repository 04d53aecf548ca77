//! Statuses and list entries of pods and containers.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use cri_api::v1;
use model::{ContainerState, PodState};

use super::{container, image, mount, pod, resources, security, signal};
use crate::store::{ContainerImage, ContainerRecord, ContainerUser, PodRecord};

/// The record of the container or its pod cannot be read.
const UNREADABLE: &str = "RecordUnreadable";

pub(crate) fn pod(record: &PodRecord) -> v1::PodSandboxStatus {
    let PodRecord {
        version: _,
        id,
        spec,
        created,
        state: phase,
        hostname: _,
        sandbox: _,
        cgroup: _,
        applied: _,
        ips,
        network: _,
        selinux: _,
        unreadable: _,
    } = record;
    let options = security::namespaces_to_wire(&spec.security.namespaces);
    v1::PodSandboxStatus {
        id: id.to_string(),
        metadata: Some(pod::meta_to_wire(&spec.meta)),
        state: pod_state(*phase).into(),
        created_at: nanos(*created),
        network: Some(network(ips)),
        linux: Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options: Some(options) }) }),
        labels: spec.labels.clone(),
        annotations: spec.annotations.clone(),
        runtime_handler: spec.handler.clone(),
    }
}

pub(crate) fn pod_item(record: &PodRecord) -> v1::PodSandbox {
    let PodRecord {
        version: _,
        id,
        spec,
        created,
        state: phase,
        hostname: _,
        sandbox: _,
        cgroup: _,
        applied: _,
        ips: _,
        network: _,
        selinux: _,
        unreadable: _,
    } = record;
    v1::PodSandbox {
        id: id.to_string(),
        metadata: Some(pod::meta_to_wire(&spec.meta)),
        state: pod_state(*phase).into(),
        created_at: nanos(*created),
        labels: spec.labels.clone(),
        annotations: spec.annotations.clone(),
        runtime_handler: spec.handler.clone(),
    }
}

/// `limits` are the kernel's current values; `None` without a cgroup.
pub(crate) fn container(record: &ContainerRecord, limits: Option<&cgroup::CurrentLimits>) -> v1::ContainerStatus {
    let ContainerRecord {
        version: _,
        id,
        pod: _,
        spec,
        created,
        state: phase,
        image: ContainerImage { id: image_id, name, reference },
        mounted,
        user: ContainerUser { uid, gid, groups },
        log,
        stop_signal,
        cgroup: _,
        applied: _,
        cdi: _,
        selinux: _,
        unreadable,
    } = record;
    let Moment { started, finished, code, mut reason, mut message } = moment(phase);
    if let Some(why) = unreadable
        && reason.is_empty()
    {
        (reason, message) = (UNREADABLE, why.to_string());
    }
    let user = v1::LinuxContainerUser {
        uid: (*uid).into(),
        gid: (*gid).into(),
        supplemental_groups: groups.iter().map(|group| i64::from(*group)).collect(),
    };
    v1::ContainerStatus {
        id: id.to_string(),
        metadata: Some(container::meta_to_wire(&spec.meta)),
        state: container_state(phase).into(),
        created_at: nanos(*created),
        started_at: started.map_or(0, nanos),
        finished_at: finished.map_or(0, nanos),
        exit_code: code,
        // The name that the kubelet shows to users; its requests contain the ID.
        image: Some(v1::ImageSpec { image: name.clone(), ..image::name_to_wire(&spec.image) }),
        image_ref: reference.clone(),
        reason: reason.to_owned(),
        message,
        labels: spec.labels.clone(),
        annotations: spec.annotations.clone(),
        mounts: spec.mounts.iter().map(|mount| mount::mount_to_wire(mount, mounted)).collect(),
        log_path: log.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        resources: limits.and_then(|now| resources::limits_to_wire(&spec.resources, now)),
        image_id: image_id.clone(),
        user: unreadable.is_none().then_some(v1::ContainerUser { linux: Some(user) }),
        stop_signal: signal::to_wire(*stop_signal).into(),
    }
}

pub(crate) fn container_item(record: &ContainerRecord) -> v1::Container {
    let ContainerRecord {
        version: _,
        id,
        pod,
        spec,
        created,
        state: phase,
        image: ContainerImage { id: image_id, name: _, reference },
        mounted: _,
        user: _,
        log: _,
        stop_signal: _,
        cgroup: _,
        applied: _,
        cdi: _,
        selinux: _,
        unreadable: _,
    } = record;
    v1::Container {
        id: id.to_string(),
        pod_sandbox_id: pod.to_string(),
        metadata: Some(container::meta_to_wire(&spec.meta)),
        image: Some(image::name_to_wire(&spec.image)),
        image_ref: reference.clone(),
        state: container_state(phase).into(),
        created_at: nanos(*created),
        labels: spec.labels.clone(),
        annotations: spec.annotations.clone(),
        image_id: image_id.clone(),
    }
}

pub(super) fn pod_state(phase: PodState) -> v1::PodSandboxState {
    match phase {
        PodState::Ready => v1::PodSandboxState::SandboxReady,
        // A ready pod would have to accept containers. The kubelet stops a pod that is not ready,
        // and creates another.
        PodState::NotReady | PodState::Unreadable => v1::PodSandboxState::SandboxNotready,
    }
}

pub(super) fn container_state(phase: &ContainerState) -> v1::ContainerState {
    match phase {
        ContainerState::Created { .. } => v1::ContainerState::ContainerCreated,
        ContainerState::Running { .. } => v1::ContainerState::ContainerRunning,
        ContainerState::Exited { .. } => v1::ContainerState::ContainerExited,
    }
}

fn network(ips: &[IpAddr]) -> v1::PodSandboxNetworkStatus {
    let mut texts = ips.iter().map(IpAddr::to_string);
    v1::PodSandboxNetworkStatus {
        ip: texts.next().unwrap_or_default(),
        additional_ips: texts.map(|ip| v1::PodIp { ip }).collect(),
    }
}

/// Returns CRI's state of a container.
#[derive(Debug, Default)]
struct Moment {
    started: Option<SystemTime>,
    finished: Option<SystemTime>,
    code: i32,
    reason: &'static str,
    message: String,
}

fn moment(phase: &ContainerState) -> Moment {
    match phase {
        ContainerState::Created { pid: _ } => Moment::default(),
        ContainerState::Running { pid: _, started } => Moment { started: Some(*started), ..Moment::default() },
        ContainerState::Exited { started, exit } => {
            let message = exit.detail().unwrap_or_default().to_owned();
            Moment { started: *started, finished: Some(exit.at), code: exit.code, reason: exit.reason(), message }
        }
    }
}

/// Returns nanoseconds since 1970; 0 for an earlier time.
pub(crate) fn nanos(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}

#[cfg(test)]
#[path = "tests/status.rs"]
mod tests;
