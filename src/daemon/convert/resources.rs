//! Limits: as requested, and as the kernel has them.

use std::collections::BTreeMap;

use cgroup::CurrentLimits;
use cri_api::v1;
use model::resources::{
    Bytes, CpuPeriod, CpuQuota, CpuSet, CpuShares, CpuWeight, HugePageSize, InvalidLimits, LimitsPatch, MemoryLimit,
    Micros, ObservedLimits, OomScoreAdj, UnifiedKey,
};
use model::{ContainerUpdate, PodUpdate};

use super::{FieldPath, InvalidField, Warnings, pod_resources};

/// Converts limits; 0, "" and absent mean "not requested".
///
/// `oom_score_adj` is always requested, because 0 is a valid score.
pub(super) fn limits(
    at: FieldPath<'_>,
    asked: Option<v1::LinuxContainerResources>,
) -> Result<LimitsPatch, InvalidField> {
    let Some(asked) = asked else { return Ok(LimitsPatch::default()) };
    let v1::LinuxContainerResources {
        cpu_period,
        cpu_quota,
        cpu_shares,
        memory_limit_in_bytes,
        oom_score_adj,
        cpuset_cpus,
        cpuset_mems,
        hugepage_limits,
        unified,
        memory_swap_limit_in_bytes,
    } = asked;
    let memory = |field: &'static str| move |value| MemoryLimit::new(field, value);
    let hugepages = hugepage_limits
        .into_iter()
        .enumerate()
        .map(|(index, v1::HugepageLimit { page_size, limit })| {
            let size =
                HugePageSize::new(&page_size).map_err(|e| refuse(at, &format!("hugepage_limits[{index}]"), &e))?;
            Ok((size, Bytes(limit)))
        })
        .collect::<Result<_, InvalidField>>()?;
    let unified = unified
        .into_iter()
        .map(|(key, value)| {
            let file = UnifiedKey::new(&key).map_err(|e| refuse(at, &format!("unified[{key:?}]"), &e))?;
            Ok((file, at.at("unified").text(value)?))
        })
        .collect::<Result<_, InvalidField>>()?;
    Ok(LimitsPatch {
        cpu_quota: number(at, "cpu_quota", cpu_quota, CpuQuota::new)?,
        cpu_period: number(at, "cpu_period", cpu_period, CpuPeriod::new)?,
        cpu_shares: number(at, "cpu_shares", cpu_shares, CpuShares::new)?,
        memory: number(at, "memory_limit_in_bytes", memory_limit_in_bytes, memory("memory_limit_in_bytes"))?,
        memory_swap: number(
            at,
            "memory_swap_limit_in_bytes",
            memory_swap_limit_in_bytes,
            memory("memory_swap_limit_in_bytes"),
        )?,
        cpuset_cpus: set(at, "cpuset_cpus", &cpuset_cpus)?,
        cpuset_mems: set(at, "cpuset_mems", &cpuset_mems)?,
        hugepages,
        unified,
        oom_score_adj: Some(OomScoreAdj::new(oom_score_adj).map_err(|e| refuse(at, "oom_score_adj", &e))?),
    })
}

/// Converts the limits of UpdateContainerResources. An OOM score of 0 and huge page limits of 0,
/// which the kubelet sends without meaning a change, are ignored: docs/resize.md has the reasons.
pub(super) fn change(
    at: FieldPath<'_>,
    asked: Option<v1::LinuxContainerResources>,
) -> Result<LimitsPatch, InvalidField> {
    let mut patch = limits(at, asked)?;
    patch.oom_score_adj = patch.oom_score_adj.filter(|score| score.get() != 0);
    patch.hugepages.retain(|_, limit| *limit != Bytes(0));
    Ok(patch)
}

/// Returns the container and the change.
pub(crate) fn update(
    asked: v1::UpdateContainerResourcesRequest,
) -> Result<(String, ContainerUpdate, Warnings), InvalidField> {
    let v1::UpdateContainerResourcesRequest { container_id, linux, windows, annotations, kubernetes_resources } = asked;
    FieldPath::top("windows").absent(windows)?;
    let mut warnings = Warnings::new();
    if !annotations.is_empty() {
        let names: Vec<_> = annotations.into_keys().collect();
        warnings.push(format!("annotations: {names:?} are unknown and ignored"));
    }
    let update = ContainerUpdate {
        limits: change(FieldPath::top("linux"), linux)?,
        kubernetes_resources: pod_resources::resources(FieldPath::top("kubernetes_resources"), kubernetes_resources)?,
    };
    Ok((super::container::id("container_id", container_id)?, update, warnings))
}

/// Returns the pod and the change.
pub(crate) fn update_pod(
    asked: v1::UpdatePodSandboxResourcesRequest,
) -> Result<(String, PodUpdate, Warnings), InvalidField> {
    let v1::UpdatePodSandboxResourcesRequest { pod_sandbox_id, overhead, resources, pod_resources } = asked;
    let limits = |name, asked: Option<_>| asked.map(|asked| pod_limits(FieldPath::top(name), Some(asked))).transpose();
    let mut warnings = Warnings::new();
    let update = PodUpdate {
        resources: limits("resources", resources)?,
        overhead: limits("overhead", overhead)?,
        pod_resources: pod_resources::pod_resource_config(
            FieldPath::top("pod_resources"),
            pod_resources,
            &mut warnings,
        )?,
    };
    Ok((super::container::id("pod_sandbox_id", pod_sandbox_id)?, update, warnings))
}

/// Converts the limits of a pod, which has no OOM score. The kubelet sends "unlimited" memory as
/// the largest multiple of the page size, and subtracts the overhead also from "unlimited": any
/// negative number means unlimited, and a quota may be below the kernel's minimum.
pub(super) fn pod_limits(
    at: FieldPath<'_>,
    asked: Option<v1::LinuxContainerResources>,
) -> Result<LimitsPatch, InvalidField> {
    let asked = asked.map(|asked| v1::LinuxContainerResources {
        cpu_quota: match asked.cpu_quota {
            0 => 0,
            quota if quota < 0 => -1,
            quota => quota.max(QUOTA_MIN),
        },
        memory_limit_in_bytes: asked.memory_limit_in_bytes.max(-1),
        memory_swap_limit_in_bytes: asked.memory_swap_limit_in_bytes.max(-1),
        ..asked
    });
    let unlimited = |memory: MemoryLimit| match memory.bytes() {
        Some(Bytes(NO_LIMIT..)) => MemoryLimit::Unlimited,
        Some(_) | None => memory,
    };
    let patch = limits(at, asked)?;
    Ok(LimitsPatch {
        oom_score_adj: None,
        memory: patch.memory.map(unlimited),
        memory_swap: patch.memory_swap.map(unlimited),
        ..patch
    })
}

/// The kernel's minimum, in microseconds.
const QUOTA_MIN: i64 = 1000;
/// A value above that of any machine; the kernel's "unlimited" depends on its page size.
const NO_LIMIT: u64 = 1 << 62;

fn refuse(at: FieldPath<'_>, name: &str, problem: &InvalidLimits) -> InvalidField {
    at.at(name).invalid(problem)
}

fn number<T>(
    at: FieldPath<'_>,
    name: &str,
    value: i64,
    make: impl FnOnce(i64) -> Result<T, InvalidLimits>,
) -> Result<Option<T>, InvalidField> {
    if value == 0 { Ok(None) } else { make(value).map(Some).map_err(|e| refuse(at, name, &e)) }
}

fn set(at: FieldPath<'_>, name: &str, text: &str) -> Result<Option<CpuSet>, InvalidField> {
    if text.is_empty() { Ok(None) } else { CpuSet::new(text).map(Some).map_err(|e| refuse(at, name, &e)) }
}

/// Returns the limits for a status: the kernel's values; a requested value replaces the kernel's
/// where the kernel derives the one from the other.
///
/// `None` without a CPU controller: the kubelet treats a missing value as "unchanged".
pub(super) fn limits_to_wire(asked: &LimitsPatch, now: &CurrentLimits) -> Option<v1::ContainerResources> {
    let ObservedLimits {
        cpu_quota,
        cpu_period,
        cpu_shares,
        cpu_weight,
        memory,
        memory_swap,
        cpuset_cpus,
        cpuset_mems,
        hugepages,
        oom_score_adj,
    } = &now.observed;
    let Micros(period) = (*cpu_period)?;
    let shares = match (cpu_shares, cpu_weight) {
        (Some(shares), _) => i64::from(*shares),
        (None, Some(weight)) => shares_of(*weight, asked.cpu_shares),
        (None, None) => return None,
    };
    let quota = match (cpu_quota, asked.cpu_quota) {
        (Some(Micros(quota)), _) => signed(*quota),
        (None, None) => 0,
        (None, Some(CpuQuota::Unlimited | CpuQuota::Micros(_))) => -1,
    };
    let linux = v1::LinuxContainerResources {
        cpu_period: signed(period),
        cpu_quota: quota,
        cpu_shares: shares,
        memory_limit_in_bytes: memory_shown(asked.memory, *memory),
        oom_score_adj: oom_score_adj.or(asked.oom_score_adj).map_or(0, i64::from),
        cpuset_cpus: set_shown(asked.cpuset_cpus.as_ref(), cpuset_cpus.as_ref()),
        cpuset_mems: set_shown(asked.cpuset_mems.as_ref(), cpuset_mems.as_ref()),
        hugepage_limits: hugepages
            .iter()
            .map(|(size, Bytes(limit))| v1::HugepageLimit { page_size: size.as_str().to_owned(), limit: *limit })
            .collect(),
        unified: unified_shown(asked, now),
        // Without a swap limit the kernel applies the memory limit.
        memory_swap_limit_in_bytes: memory_shown(asked.memory_swap.or(asked.memory), *memory_swap),
    };
    Some(v1::ContainerResources { linux: Some(linux), windows: None })
}

/// Returns the requested shares if they result in this weight, else the smallest that do: several
/// shares have the same weight.
pub(super) fn shares_of(weight: CpuWeight, asked: Option<CpuShares>) -> i64 {
    let makes = |shares: CpuShares| cgroup::weight(shares).cmp(&weight.get());
    if let Some(asked) = asked.filter(|shares| makes(*shares).is_eq()) {
        return asked.into();
    }
    let (mut low, mut high) = (2, 262_144);
    while low < high {
        let middle = i64::midpoint(low, high);
        match CpuShares::new(middle) {
            Ok(shares) if makes(shares).is_lt() => low = middle + 1,
            Ok(_) | Err(_) => high = middle,
        }
    }
    low
}

/// The kernel rounds limits down to whole pages.
fn memory_shown(asked: Option<MemoryLimit>, now: Option<Bytes>) -> i64 {
    let asked = asked.and_then(MemoryLimit::bytes);
    match (asked, now) {
        (_, None) => 0,
        (Some(Bytes(asked)), Some(Bytes(now))) if in_pages(asked) == now => signed(asked),
        (_, Some(Bytes(now))) => signed(now),
    }
}

fn in_pages(bytes: u64) -> u64 {
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    bytes - bytes % page
}

/// Returns each raw file with the requested value, or with the value that another process wrote.
fn unified_shown(asked: &LimitsPatch, now: &CurrentLimits) -> BTreeMap<String, String> {
    let found = |file: &str| now.drift.iter().find(|drift| drift.knob.file() == file);
    let shown = asked.unified.iter().filter_map(|(key, value)| match found(key.as_str()) {
        Some(drift) => Some((key.as_str().to_owned(), drift.found.clone()?)),
        None => Some((key.as_str().to_owned(), value.clone())),
    });
    shown.collect()
}

/// A container without a cpuset uses that of the parent cgroup. It is not the container's own
/// limit, although cgroup v1 shows it there.
fn set_shown(asked: Option<&CpuSet>, now: Option<&CpuSet>) -> String {
    match (asked, now) {
        (Some(asked), Some(now)) if asked == now => asked.as_str().to_owned(),
        (Some(_), Some(now)) => now.as_str().to_owned(),
        (None, _) | (_, None) => String::new(),
    }
}

/// CRI's numbers are signed; a value above their range is unlimited.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "tests/resources.rs"]
mod tests;
