//! Computes the limits of a whole pod by the kubelet's rules.

use super::{ContainerKind, ContainerResourceConfig, PodResourceConfig, ResourceList, Resources};
use crate::quantity::Quantity;
use crate::resources::{Bytes, CpuPeriod, CpuQuota, CpuShares, LimitsPatch, MemoryLimit, Micros};

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
/// In microseconds: the default of the kubelet and the kernel.
const PERIOD: u32 = 100_000;
/// In microseconds: the minimum that the kernel accepts.
const QUOTA_MIN: u64 = 1000;
/// In microseconds: the maximum that the kernel accepts, about 175 million CPUs.
const QUOTA_MAX: u64 = (1 << 44) - 1;
const NANOS_IN_MILLI: u128 = 1_000_000;
const NANOS_IN_ONE: u128 = 1_000_000_000;

/// Returns the limits of a cgroup for the whole pod, without overhead; empty without a declaration.
/// docs/resize.md has the sum. Fractions are rounded up, and an amount that the kernel cannot
/// represent is unlimited.
pub fn pod_limits(announced: &PodResourceConfig) -> LimitsPatch {
    if announced.containers.is_empty() && announced.resources.is_none() {
        return LimitsPatch::default();
    }
    let cpu_quota = limit(announced, CPU).map(quota);
    LimitsPatch {
        cpu_shares: shares(request(announced, CPU)),
        cpu_period: cpu_quota.and_then(|_| CpuPeriod::new(PERIOD.into()).ok()),
        cpu_quota,
        memory: limit(announced, MEMORY).map(memory),
        ..LimitsPatch::default()
    }
}

/// Returns the request in billionths. A container with only a limit requests the same amount; so
/// does a pod if none of its containers requests the resource.
fn request(announced: &PodResourceConfig, name: &str) -> u128 {
    let of_container = |container: &ContainerResourceConfig| {
        let resources = container.resources.as_ref()?;
        of(&resources.requests, name).or_else(|| of(&resources.limits, name))
    };
    let of_pod = |amounts: fn(&Resources) -> &ResourceList| of(amounts(announced.resources.as_ref()?), name);
    of_pod(|resources| &resources.requests)
        .or_else(|| {
            let any = announced.containers.iter().any(|container| of_container(container).is_some());
            any.then(|| together(announced, |container| of_container(container).unwrap_or(0)))
        })
        .or_else(|| of_pod(|resources| &resources.limits))
        .unwrap_or(0)
}

/// Returns the limit in billionths. A limit of 0 means no limit, as in Kubernetes.
fn limit(announced: &PodResourceConfig, name: &str) -> Option<u128> {
    let stated = |resources: &Option<Resources>| of(&resources.as_ref()?.limits, name).filter(|limit| *limit > 0);
    let each = || {
        let of_container = |container: &ContainerResourceConfig| stated(&container.resources);
        let all = announced.containers.iter().all(|container| of_container(container).is_some());
        let limit = all.then(|| together(announced, |container| of_container(container).unwrap_or(0)));
        limit.filter(|_| !announced.containers.is_empty())
    };
    stated(&announced.resources).or_else(each)
}

fn of(amounts: &ResourceList, name: &str) -> Option<u128> {
    amounts.get(name).map(Quantity::nanos)
}

/// Returns the sum of all regular containers, or the maximum of an init container if that is more.
fn together(announced: &PodResourceConfig, amount: impl Fn(&ContainerResourceConfig) -> u128) -> u128 {
    let of = |kind| announced.containers.iter().filter(move |container| container.kind == kind).map(&amount);
    // Cannot overflow: a request cannot contain enough containers.
    let sum: u128 = of(ContainerKind::Regular).sum();
    sum.max(of(ContainerKind::Init).max().unwrap_or(0))
}

fn shares(nanos: u128) -> Option<CpuShares> {
    let shares = nanos.div_ceil(NANOS_IN_MILLI).saturating_mul(1024) / 1000;
    CpuShares::new(i64::try_from(shares.clamp(2, 262_144)).ok()?).ok()
}

fn quota(nanos: u128) -> CpuQuota {
    let micros = nanos.div_ceil(NANOS_IN_MILLI).saturating_mul(PERIOD.into()) / 1000;
    match u64::try_from(micros) {
        Ok(micros @ ..=QUOTA_MAX) => CpuQuota::Micros(Micros(micros.max(QUOTA_MIN))),
        Ok(_) | Err(_) => CpuQuota::Unlimited,
    }
}

fn memory(nanos: u128) -> MemoryLimit {
    match i64::try_from(nanos.div_ceil(NANOS_IN_ONE)) {
        Ok(bytes) => MemoryLimit::Bytes(Bytes(bytes.unsigned_abs())),
        Err(_) => MemoryLimit::Unlimited,
    }
}

#[cfg(test)]
#[path = "pod_limits_tests.rs"]
mod tests;
