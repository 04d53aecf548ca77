//! Computes a pod's limits after a change of its containers.

use model::resources::{Bytes, CpuQuota, CpuShares, LimitsPatch, MemoryLimit, Micros};

use super::super::units::PERIOD;
use super::order::LimitsChange;
use super::quantity_arg::{cpu_micros, memory_bytes};

/// Minimum limits of a pod.
const MEMORY_MIN: i128 = 4096;
const QUOTA_MIN: i128 = 1000;

/// Returns the pod's limits, changed by the sum of the changes of its containers. A limit that is
/// the sum of the containers' limits stays the sum; a limit above the sum keeps the difference. A
/// pod without a limit gets none.
pub(super) fn pod_limits_after(pod: &LimitsPatch, containers: &[LimitsChange]) -> LimitsPatch {
    let period = period(pod);
    let memory = pod.memory.and_then(memory_bytes).map(|had| {
        let more = containers.iter().map(|one| difference(one, |patch| patch.memory.and_then(memory_bytes)));
        Bytes(sum(had, more.sum(), MEMORY_MIN))
    });
    let quota = pod.cpu_quota.and_then(cpu_micros).map(|had| {
        let more = containers.iter().map(|one| difference(one, |patch| scaled(patch, period)));
        Micros(sum(had, more.sum(), QUOTA_MIN))
    });
    let shares = pod.cpu_shares.and_then(|had| {
        let more =
            containers.iter().map(|one| difference(one, |patch| patch.cpu_shares.map(|shares| shares.get().into())));
        let shares = sum(had.get().into(), more.sum(), 2).min(262_144);
        i64::try_from(shares).ok().and_then(|shares| CpuShares::new(shares).ok())
    });
    LimitsPatch {
        memory: memory.map(MemoryLimit::Bytes),
        cpu_quota: quota.map(CpuQuota::Micros),
        cpu_period: quota.and(pod.cpu_period),
        cpu_shares: shares,
        ..LimitsPatch::default()
    }
}

fn period(patch: &LimitsPatch) -> u64 {
    patch.cpu_period.map_or(PERIOD, |period| period.micros().0)
}

/// Returns a container's quota, scaled to the pod's period.
fn scaled(patch: &LimitsPatch, pod_period: u64) -> Option<u64> {
    let micros = cpu_micros(patch.cpu_quota?)?;
    let micros = (u128::from(micros) * u128::from(pod_period)).div_ceil(u128::from(period(patch)));
    u64::try_from(micros).ok()
}

/// Returns the change of a container's limit; 0 if it has no limit before or after.
fn difference(one: &LimitsChange, amount: impl Fn(&LimitsPatch) -> Option<u64>) -> i128 {
    let then = one.now.clone().merged(&one.to);
    match (amount(&one.now), amount(&then)) {
        (Some(now), Some(then)) => i128::from(then) - i128::from(now),
        (None, _) | (_, None) => 0,
    }
}

fn sum(had: u64, more: i128, least: i128) -> u64 {
    let least = least.min(had.into());
    u64::try_from((i128::from(had) + more).max(least)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use model::resources::CpuPeriod;

    use super::*;

    fn size(micros: u64, period: i64, shares: i64, mib: u64) -> LimitsPatch {
        LimitsPatch {
            cpu_quota: Some(CpuQuota::Micros(Micros(micros))),
            cpu_period: CpuPeriod::new(period).ok(),
            cpu_shares: CpuShares::new(shares).ok(),
            memory: Some(MemoryLimit::Bytes(Bytes(mib << 20))),
            ..LimitsPatch::default()
        }
    }

    #[test]
    fn pod_limits_follow_the_containers_and_keep_the_difference() {
        let one = LimitsChange { now: size(50_000, 100_000, 512, 64), to: size(100_000, 100_000, 1024, 128) };
        let two = LimitsChange { now: size(10_000, 20_000, 512, 64), to: size(5_000, 20_000, 256, 32) };
        let pod = size(120_000, 100_000, 1024, 200);
        assert_eq!(pod_limits_after(&pod, &[one, two]), size(145_000, 100_000, 1280, 232));
    }

    #[test]
    fn unlimited_pods_stay_unlimited_and_unlimited_containers_do_not_count() {
        let change = LimitsChange { now: LimitsPatch::default(), to: size(50_000, 100_000, 512, 64) };
        assert_eq!(pod_limits_after(&LimitsPatch::default(), std::slice::from_ref(&change)), LimitsPatch::default());
        let pod = size(50_000, 100_000, 1024, 64);
        assert_eq!(pod_limits_after(&pod, &[change]), pod);
    }
}
