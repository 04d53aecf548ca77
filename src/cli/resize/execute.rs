//! Executes the steps of a resize, and rolls back if one fails.

use std::io::{self, Write as _};
use std::time::Instant;

use cri_api::v1;
use daemon::convert::pod_resources;
use model::resources::{CpuPeriod, CpuQuota, CpuShares, LimitsPatch, MemoryLimit};
use tonic::Status;

use super::super::client::Cri;
use super::super::color::Color;
use super::super::signals::Interrupt;
use super::order::{Owner, Step};
use super::targets::Targets;
use super::{ResizeError, print};

/// Calls the daemon for each step; after a failure or a signal, rolls back the completed steps.
pub(super) async fn execute(
    cri: &Cri,
    group: &Targets,
    steps: &[Step],
    interrupt: &Interrupt,
) -> Result<(), ResizeError> {
    let color = Color::stdout();
    for (index, step) in steps.iter().enumerate() {
        if interrupt.is_stopped() {
            return Err(ResizeError::Interrupted(roll_back(cri, group, &steps[..index]).await));
        }
        let (what, begin) = (print::words(group, step), Instant::now());
        match call(cri, group, step, Direction::There).await {
            Ok(()) => {
                let took = begin.elapsed().as_millis();
                // A failed write to stdout must not stop the resize.
                writeln!(io::stdout(), "{}  {what}  {}", color.good("ok"), color.faint(&format!("{took} ms"))).ok();
            }
            Err(status) => {
                writeln!(io::stdout(), "{}  {what}", color.bad("failed")).ok();
                let undone = roll_back(cri, group, &steps[..index]).await;
                let (step, all, problem) = (index + 1, steps.len(), status.message().to_owned());
                return Err(ResizeError::Step { step, all, what, problem, undone });
            }
        }
    }
    if let Some(declared) = &group.declared {
        // Last: all limits are set by now, so this changes no cgroup file except possibly the pod's weight.
        let pod_resources = Some(pod_resources::pod_resource_config_to_wire(declared));
        let ask = v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: group.pod.id.clone(),
            pod_resources,
            ..Default::default()
        };
        if let Err(status) = cri.runtime().update_pod_sandbox_resources(ask).await {
            let undone = roll_back(cri, group, steps).await;
            let (step, what, problem) = (steps.len() + 1, print::DECLARED.to_owned(), status.message().to_owned());
            return Err(ResizeError::Step { step, all: step, what, problem, undone });
        }
        writeln!(io::stdout(), "{}  {}", color.good("ok"), print::DECLARED).ok();
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    There,
    Back,
}

/// Rolls back every step, last first, and returns a message about the result.
async fn roll_back(cri: &Cri, group: &Targets, steps: &[Step]) -> String {
    let mut left = Vec::new();
    for step in steps.iter().rev() {
        if let Err(status) = call(cri, group, step, Direction::Back).await {
            left.push(format!("cannot roll back {}: {}", print::words(group, step), status.message()));
        }
    }
    match (steps.len(), &left[..]) {
        (0, _) => "nothing was changed".to_owned(),
        (_, []) => "all changes were rolled back".to_owned(),
        (_, left) => left.join("; "),
    }
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
