//! Limits of a whole pod, if crisp owns its cgroup.

use model::resources::{Bytes, CpuPeriod, CpuQuota, CpuShares, LimitsPatch, MemoryLimit, Micros};
use model::{PodSpec, pod_resources};

/// The kernel's default period.
const PERIOD: u64 = 100_000;
/// The most shares that the kernel takes.
const SHARES_MAX: u32 = 262_144;

/// Returns the limits of a pod's cgroup: those of the request, otherwise the sum of the declared
/// containers, plus the overhead of the pod.
pub(crate) fn of(pod: &PodSpec) -> LimitsPatch {
    let announced = pod.pod_resources.as_ref().map(pod_resources::pod_limits).unwrap_or_default();
    limits(&announced.merged(&pod.resources), &pod.overhead)
}

/// Overhead is added to existing limits; it sets none.
fn limits(resources: &LimitsPatch, overhead: &LimitsPatch) -> LimitsPatch {
    let period = resources.cpu_period.map_or(PERIOD, |period| period.micros().0);
    LimitsPatch {
        cpu_quota: resources.cpu_quota.map(|quota| quota_with(quota, period, overhead)),
        cpu_shares: resources.cpu_shares.map(|shares| shares_with(shares, overhead.cpu_shares)),
        memory: resources.memory.map(|memory| memory_with(memory, overhead.memory)),
        memory_swap: resources.memory_swap.map(|swap| memory_with(swap, overhead.memory_swap.or(overhead.memory))),
        ..resources.clone()
    }
}

/// Overhead may have another period.
fn quota_with(quota: CpuQuota, period: u64, overhead: &LimitsPatch) -> CpuQuota {
    match (quota, overhead.cpu_quota) {
        (CpuQuota::Micros(Micros(quota)), Some(CpuQuota::Micros(Micros(more)))) => {
            let other = overhead.cpu_period.map_or(PERIOD, |period: CpuPeriod| period.micros().0);
            let more = u128::from(more) * u128::from(period);
            let more = u64::try_from(more.div_ceil(u128::from(other))).unwrap_or(u64::MAX);
            CpuQuota::Micros(Micros(quota.saturating_add(more)))
        }
        (quota, _) => quota,
    }
}

fn shares_with(shares: CpuShares, overhead: Option<CpuShares>) -> CpuShares {
    let sum = overhead.map_or(0, CpuShares::get).saturating_add(shares.get()).min(SHARES_MAX);
    CpuShares::new(sum.into()).unwrap_or(shares)
}

fn memory_with(memory: MemoryLimit, overhead: Option<MemoryLimit>) -> MemoryLimit {
    match (memory, overhead) {
        (MemoryLimit::Bytes(Bytes(bytes)), Some(MemoryLimit::Bytes(Bytes(more)))) => {
            MemoryLimit::Bytes(Bytes(bytes.saturating_add(more)))
        }
        (memory, _) => memory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(quota: i64, period: i64, shares: i64, memory: u64) -> LimitsPatch {
        LimitsPatch {
            cpu_quota: Some(CpuQuota::new(quota).unwrap()),
            cpu_period: Some(CpuPeriod::new(period).unwrap()),
            cpu_shares: Some(CpuShares::new(shares).unwrap()),
            memory: Some(MemoryLimit::Bytes(Bytes(memory))),
            memory_swap: Some(MemoryLimit::Bytes(Bytes(memory))),
            ..LimitsPatch::default()
        }
    }

    #[test]
    fn overhead_is_added_in_the_pods_own_period() {
        let pod = limits(&patch(200_000, 100_000, 2048, 1 << 30), &patch(5_000, 20_000, 256, 1 << 20));
        assert_eq!(pod, patch(225_000, 100_000, 2304, (1 << 30) + (1 << 20)));
    }

    #[test]
    fn overhead_makes_no_limits_and_an_unlimited_pod_stays_so() {
        assert_eq!(limits(&LimitsPatch::default(), &patch(5_000, 20_000, 256, 1)), LimitsPatch::default());
        let unlimited = LimitsPatch {
            cpu_quota: Some(CpuQuota::Unlimited),
            memory: Some(MemoryLimit::Unlimited),
            ..LimitsPatch::default()
        };
        assert_eq!(limits(&unlimited, &patch(5_000, 20_000, 256, 1)), unlimited);
    }

    #[test]
    fn limits_above_the_kernels_maximum_are_clamped() {
        let most = patch(1_000, 1_000, 262_144, u64::MAX);
        let pod = limits(&most, &most);
        assert_eq!(pod.cpu_shares, most.cpu_shares);
        assert_eq!(pod.memory, most.memory);
    }
}
