//! Limits of the levels above containers and pods: raised above them, a container or pod still has only what they have.

use std::cmp::Ordering;

use cgroup::{Cgroup, EffectiveLimit, EffectiveLimits, Level, LevelError, LevelKind, LevelReadings};
use model::resources::LimitsPatch;

use super::super::{effective_limits, units};
use super::order::{LimitsChange, compare, cpus};
use super::quantity_arg::memory_bytes;
use super::targets::Targets;

/// A limit of a level above.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parent {
    limit: u64,
    at: Level,
}

/// Reads a limit of a patch; `None` for unlimited.
type Amount = fn(&LimitsPatch) -> Option<u128>;

fn memory(patch: &LimitsPatch) -> Option<u128> {
    patch.memory.and_then(memory_bytes).map(u128::from)
}

/// Returns a warning for each limit that is raised above one of a level above.
pub(super) fn warnings(targets: &Targets) -> Result<Vec<String>, LevelError> {
    let (pod, mut levels) = (&targets.pod, LevelReadings::default());
    let path = pod.group.path();
    let above_pod = levels.above(&pod.group, path)?;
    let mut warnings = Vec::new();
    for member in &targets.containers {
        let above = levels.above(&member.group, path)?;
        let [cpu, memory] = [
            planned(&pod.size, pod.size.to.cpu_quota.is_some(), cpus, path.as_str(), above.cpu, &above_pod.cpu),
            planned(&pod.size, pod.size.to.memory.is_some(), memory, path.as_str(), above.memory, &above_pod.memory),
        ];
        warnings.extend(warn(&format!("container {}", member.name), &member.size, cpu, memory));
    }
    let EffectiveLimits { cpu, memory, .. } = above_pod;
    warnings.extend(warn(&format!("pod {}", pod.name), &pod.size, cpu.map(parent), memory.map(parent)));
    Ok(warnings)
}

/// Returns the lowest limit above a container, of which the pod's may change too.
fn planned(
    pod: &LimitsChange,
    changes: bool,
    amount: Amount,
    cgroup: &str,
    now: Option<EffectiveLimit>,
    above_pod: &Option<EffectiveLimit>,
) -> Option<Parent> {
    if !changes {
        return now.map(parent);
    }
    let limit = amount(&pod.now.clone().merged(&pod.to)).and_then(|limit| u64::try_from(limit).ok());
    let own = limit.map(|limit| Parent { limit, at: Level { kind: LevelKind::Pod, cgroup: cgroup.to_owned() } });
    own.into_iter().chain(above_pod.clone().map(parent)).min_by_key(|parent| parent.limit)
}

fn parent(EffectiveLimit { limit, set_by, .. }: EffectiveLimit) -> Parent {
    Parent { limit, at: set_by }
}

fn warn(owner: &str, size: &LimitsChange, cpu: Option<Parent>, memory_above: Option<Parent>) -> Vec<String> {
    let cpu_changes = size.to.cpu_quota.is_some() || size.to.cpu_period.is_some();
    let cpu = exceeds(size, cpu_changes, cpus, cpu);
    let memory = exceeds(size, size.to.memory.is_some(), memory, memory_above);
    let words = |what: &str, new: Option<u64>, Parent { limit, at }: Parent, show: fn(u64) -> String| {
        let new = new.map_or_else(|| "no limit".to_owned(), show);
        let place = effective_limits::place(&at);
        format!("{owner}: {what} {new} is above the limit of {place}; {} stays effective", show(limit))
    };
    let cpu = cpu.map(|(new, parent)| words("cpu", new, parent, effective_limits::cpus));
    let memory = memory.map(|(new, parent)| words("memory", new, parent, units::bytes));
    [cpu, memory].into_iter().flatten().collect()
}

/// Returns the new limit, if it is higher than the old one and than the parent's.
fn exceeds(
    size: &LimitsChange,
    changes: bool,
    amount: Amount,
    parent: Option<Parent>,
) -> Option<(Option<u64>, Parent)> {
    let parent = parent.filter(|_| changes)?;
    let new = amount(&size.now.clone().merged(&size.to));
    let raised = compare(new, amount(&size.now)) == Ordering::Greater;
    let above = compare(new, Some(parent.limit.into())) == Ordering::Greater;
    (raised && above).then(|| (new.and_then(|new| u64::try_from(new).ok()), parent))
}

/// Returns the effective limit of each changed one that a level above sets.
pub(super) fn effective(targets: &Targets) -> Result<Vec<String>, LevelError> {
    let (mut lines, mut levels) = (Vec::new(), LevelReadings::default());
    let members = targets.containers.iter().map(|member| ("container", &member.name, &member.group, &member.size));
    let pod = ("pod", &targets.pod.name, &targets.pod.group, &targets.pod.size);
    for (kind, name, group, size) in members.chain([pod]) {
        let EffectiveLimits { cpu, memory, .. } = levels.effective(group, targets.pod.group.path())?;
        let above = |limit: &EffectiveLimit| limit.set_by.cgroup != own(group);
        let cpu = cpu.filter(|limit| size.to.cpu_quota.is_some() && above(limit));
        let memory = memory.filter(|limit| size.to.memory.is_some() && above(limit));
        let [cpu, memory] = [cpu.as_ref().map(effective_limits::cpu), memory.as_ref().map(effective_limits::memory)];
        lines.extend([cpu, memory].into_iter().flatten().map(|line| format!("{kind} {name}: {line}")));
    }
    Ok(lines)
}

fn own(group: &Cgroup) -> &str {
    group.path().as_str()
}

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, CpuPeriod, CpuQuota, MemoryLimit, Micros};

    use super::*;

    fn patch(mib: Option<u64>, quota: Option<u64>) -> LimitsPatch {
        LimitsPatch {
            memory: Some(mib.map_or(MemoryLimit::Unlimited, |mib| MemoryLimit::Bytes(Bytes(mib << 20)))),
            cpu_quota: Some(quota.map_or(CpuQuota::Unlimited, |quota| CpuQuota::Micros(Micros(quota)))),
            cpu_period: CpuPeriod::new(100_000).ok(),
            ..LimitsPatch::default()
        }
    }

    fn pod(limit: u64) -> Option<Parent> {
        Some(Parent { limit, at: Level { kind: LevelKind::Pod, cgroup: "/p".to_owned() } })
    }

    #[test]
    fn a_limit_raised_above_the_parents_is_warned_about() {
        let change = |to| LimitsChange { now: patch(Some(64), Some(50_000)), to };
        let (cpu, memory) = (pod(1_000_000_000), pod(100 << 20));
        let warnings = |to| warn("container web", &change(to), cpu.clone(), memory.clone());
        assert_eq!(warnings(patch(Some(100), Some(100_000))), Vec::<String>::new());
        assert_eq!(
            warnings(patch(Some(500), Some(150_000))),
            [
                "container web: cpu 1500m is above the limit of the pod cgroup /p; 1 stays effective",
                "container web: memory 500Mi is above the limit of the pod cgroup /p; 100Mi stays effective",
            ]
        );
        assert!(warnings(patch(None, None))[1].starts_with("container web: memory no limit is above"));
        let lowered = LimitsChange { now: patch(Some(500), None), to: patch(Some(200), None) };
        assert_eq!(warn("container web", &lowered, None, memory.clone()), Vec::<String>::new(), "it is not raised");
        assert_eq!(warn("container web", &change(patch(Some(500), None)), None, None), Vec::<String>::new());
    }

    #[test]
    fn a_pod_that_changes_too_counts_with_its_new_limit() {
        let size = LimitsChange { now: patch(Some(64), None), to: patch(Some(200), None) };
        let above = Some(EffectiveLimit {
            limit: 300 << 20,
            set_by: Level { kind: LevelKind::Parent, cgroup: "/".to_owned() },
            free: None,
            least_free: None,
        });
        let found = planned(&size, true, memory, "/p", above.clone(), &above).unwrap();
        assert_eq!(found, pod(200 << 20).unwrap());
        let unlimited = LimitsChange { to: patch(None, None), ..size };
        assert_eq!(planned(&unlimited, true, memory, "/p", None, &above).unwrap().limit, 300 << 20);
        assert_eq!(planned(&unlimited, false, memory, "/p", None, &above), None);
    }
}
