//! Executes the steps of a resize, and rolls back if one fails.

use std::fmt;
use std::time::{Duration, Instant};

use cri_api::v1;
use daemon::convert::pod_resources;
use model::resources::{CpuPeriod, CpuQuota, CpuShares, LimitsPatch, MemoryLimit};
use tonic::Status;

use super::super::client::Cri;
use super::super::signals::Interrupt;
use super::order::{Owner, Step};
use super::targets::Targets;
use super::{Position, ResizeError, print};

/// The rollback of the steps that were completed before a failure.
#[derive(Debug, Default)]
pub struct RollBack {
    steps: usize,
    /// Steps that could not be rolled back, by index, with the reason.
    pub(super) left: Vec<(usize, String)>,
}

impl fmt::Display for RollBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.steps, &self.left[..]) {
            (0, _) => f.write_str("nothing was changed"),
            (_, []) => f.write_str("all changes were rolled back"),
            (_, left) => {
                let texts: Vec<&str> = left.iter().map(|(_, text)| text.as_str()).collect();
                f.write_str(&texts.join("; "))
            }
        }
    }
}

/// Calls the daemon for each step; after a failure or a signal, rolls back the completed steps. `completed` gets each
/// step with its duration.
pub(super) async fn execute(
    cri: &Cri,
    group: &Targets,
    steps: &[Step],
    interrupt: &Interrupt,
    completed: &mut dyn FnMut(&str, Duration),
) -> Result<(), ResizeError> {
    let all = steps.len() + usize::from(group.declared.is_some());
    for (index, step) in steps.iter().enumerate() {
        if interrupt.is_stopped() {
            return Err(ResizeError::Interrupted(roll_back(cri, group, &steps[..index]).await));
        }
        let (what, begin) = (print::words(group, step), Instant::now());
        if let Err(status) = call(cri, group, step, Direction::There).await {
            let undone = roll_back(cri, group, &steps[..index]).await;
            let problem = reason(status.message());
            return Err(ResizeError::Step { step: Position { index, all }, what, problem, undone });
        }
        completed(&what, begin.elapsed());
    }
    if let Some(declared) = &group.declared {
        // Last: all limits are set by now, so this changes no cgroup file except possibly the pod's weight.
        let pod_resources = Some(pod_resources::pod_resource_config_to_wire(declared));
        let ask = v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: group.pod.id.clone(),
            pod_resources,
            ..Default::default()
        };
        let begin = Instant::now();
        if let Err(status) = cri.runtime().update_pod_sandbox_resources(ask).await {
            let undone = roll_back(cri, group, steps).await;
            let (what, problem) = (print::DECLARED.to_owned(), reason(status.message()));
            return Err(ResizeError::Step { step: Position { index: steps.len(), all }, what, problem, undone });
        }
        completed(print::DECLARED, begin.elapsed());
    }
    Ok(())
}

/// Removes the beginning that names the pod or container by ID: the step has its name.
fn reason(message: &str) -> String {
    let named = message.strip_prefix("changing the resources of ");
    named.and_then(|rest| rest.split_once(": ")).map_or(message, |(_, reason)| reason).to_owned()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    There,
    Back,
}

/// Rolls back every step, last first.
async fn roll_back(cri: &Cri, group: &Targets, steps: &[Step]) -> RollBack {
    let mut undone = RollBack { steps: steps.len(), left: Vec::new() };
    for (index, step) in steps.iter().enumerate().rev() {
        if let Err(status) = call(cri, group, step, Direction::Back).await {
            let text = format!("cannot roll back {}: {}", print::words(group, step), reason(status.message()));
            undone.left.push((index, text));
        }
    }
    undone
}

async fn call(cri: &Cri, group: &Targets, step: &Step, direction: Direction) -> Result<(), Status> {
    let limits = match direction {
        Direction::There => &step.to,
        Direction::Back => &step.back,
    };
    match step.owner {
        Owner::Pod => {
            let pod_sandbox_id = group.pod.id.clone();
            let resources = Some(to_wire(limits));
            let ask = v1::UpdatePodSandboxResourcesRequest { pod_sandbox_id, resources, ..Default::default() };
            cri.runtime().update_pod_sandbox_resources(ask).await.map(drop)
        }
        Owner::Container(index) => {
            let Some(member) = group.containers.get(index) else { return Ok(()) };
            let stated = member.stated.as_ref().map(|(had, then)| match direction {
                Direction::There => pod_resources::resources_to_wire(then),
                Direction::Back => pod_resources::resources_to_wire(had),
            });
            let ask = v1::UpdateContainerResourcesRequest {
                container_id: member.id.clone(),
                linux: Some(to_wire(limits)),
                kubernetes_resources: stated,
                ..Default::default()
            };
            cri.runtime().update_container_resources(ask).await.map(drop)
        }
    }
}

/// Converts a patch to a CRI message: 0 and "" mean unchanged, -1 means no limit.
fn to_wire(patch: &LimitsPatch) -> v1::LinuxContainerResources {
    let memory = |limit: Option<MemoryLimit>| match limit {
        None => 0,
        Some(limit) => limit.bytes().map_or(-1, |bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX)),
    };
    let quota = match patch.cpu_quota {
        None => 0,
        Some(CpuQuota::Unlimited) => -1,
        Some(CpuQuota::Micros(micros)) => i64::try_from(micros.0).unwrap_or(i64::MAX),
    };
    let set =
        |set: &Option<model::resources::CpuSet>| set.as_ref().map(|set| set.as_str().to_owned()).unwrap_or_default();
    v1::LinuxContainerResources {
        cpu_period: patch.cpu_period.map_or(0, |period: CpuPeriod| period.into()),
        cpu_quota: quota,
        cpu_shares: patch.cpu_shares.map_or(0, |shares: CpuShares| shares.into()),
        memory_limit_in_bytes: memory(patch.memory),
        memory_swap_limit_in_bytes: memory(patch.memory_swap),
        cpuset_cpus: set(&patch.cpuset_cpus),
        cpuset_mems: set(&patch.cpuset_mems),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, CpuSet, Micros};

    use super::*;

    #[test]
    fn the_reason_of_a_refusal_repeats_no_id() {
        let message = "changing the resources of container 4f2a: attempting to set memory limit (1): /sys/f stays";
        assert_eq!(reason(message), "attempting to set memory limit (1): /sys/f stays");
        assert_eq!(reason("container \"a\" not found"), "container \"a\" not found");
    }

    #[test]
    fn the_result_of_a_rollback_is_described() {
        let left = |left: &[&str]| left.iter().enumerate().map(|(index, text)| (index, (*text).to_owned())).collect();
        for (undone, text) in [
            (RollBack::default(), "nothing was changed"),
            (RollBack { steps: 2, left: Vec::new() }, "all changes were rolled back"),
            (RollBack { steps: 2, left: left(&["cannot roll back a", "b"]) }, "cannot roll back a; b"),
        ] {
            assert_eq!(undone.to_string(), text);
        }
    }

    #[test]
    fn unset_fields_are_sent_as_unchanged_and_no_limit_as_minus_1() {
        assert_eq!(to_wire(&LimitsPatch::default()), v1::LinuxContainerResources::default());
        let patch = LimitsPatch {
            cpu_quota: Some(CpuQuota::Unlimited),
            cpu_period: CpuPeriod::new(50_000).ok(),
            cpu_shares: CpuShares::new(7).ok(),
            memory: Some(MemoryLimit::Unlimited),
            memory_swap: Some(MemoryLimit::Bytes(Bytes(5))),
            cpuset_cpus: CpuSet::new("0-1").ok(),
            cpuset_mems: CpuSet::new("0").ok(),
            ..LimitsPatch::default()
        };
        let expected = v1::LinuxContainerResources {
            cpu_period: 50_000,
            cpu_quota: -1,
            cpu_shares: 7,
            memory_limit_in_bytes: -1,
            memory_swap_limit_in_bytes: 5,
            cpuset_cpus: "0-1".to_owned(),
            cpuset_mems: "0".to_owned(),
            ..Default::default()
        };
        assert_eq!(to_wire(&patch), expected);
        let quota = LimitsPatch { cpu_quota: Some(CpuQuota::Micros(Micros(9_000))), ..LimitsPatch::default() };
        assert_eq!(to_wire(&quota).cpu_quota, 9_000);
    }
}
