//! Plans and reads limits with the files of cgroup v2.

use model::resources::{Bytes, CpuQuota, CpuShares, CpuWeight, HugePageSize, LimitsPatch, Micros, ObservedLimits};

use crate::limits::knob::{Knob, Unreadable, Values};
use crate::limits::plan::{Limit, PlanBuilder, PlanError};
use crate::limits::value::Value;

pub(crate) fn knobs(patch: &LimitsPatch) -> Vec<Knob> {
    let mut knobs = Vec::new();
    let raw = |knob: &Knob| patch.unified.keys().any(|key| key.as_str() == knob.file());
    if patch.memory.is_some() || patch.memory_swap.is_some() {
        knobs.extend([Knob::MEMORY_MAX, Knob::SWAP_MAX]);
    }
    if patch.memory.is_some() || raw(&Knob::MEMORY_MAX) {
        knobs.extend([Knob::MEMORY_CURRENT, Knob::MEMORY_HIGH]);
    }
    if patch.cpu_quota.is_some() || patch.cpu_period.is_some() {
        knobs.push(Knob::CPU_MAX);
    }
    knobs.extend(patch.cpu_shares.map(|_| Knob::CPU_WEIGHT));
    knobs.extend(patch.cpuset_mems.as_ref().map(|_| Knob::CPUSET_MEMS));
    knobs.extend(patch.cpuset_cpus.as_ref().map(|_| Knob::CPUSET_CPUS));
    for size in patch.hugepages.keys() {
        knobs.extend([Knob::hugetlb_max(size), Knob::hugetlb_reserved_max(size)]);
    }
    knobs.extend(patch.unified.keys().map(Knob::unified));
    knobs
}

pub(crate) fn plan(draft: &mut PlanBuilder<'_>, patch: &LimitsPatch) -> Result<(), PlanError> {
    let LimitsPatch {
        cpu_quota: _,
        cpu_period: _,
        cpu_shares,
        memory: _,
        memory_swap: _,
        cpuset_cpus,
        cpuset_mems,
        hugepages,
        unified,
        oom_score_adj: _,
    } = patch;
    memory(draft, patch)?;
    bandwidth(draft, patch)?;
    if let Some(shares) = cpu_shares {
        draft.set("cpu_shares", Knob::CPU_WEIGHT, weight(*shares).to_string())?;
    }
    if let Some(mems) = cpuset_mems {
        draft.set("cpuset_mems", Knob::CPUSET_MEMS, mems.as_str())?;
    }
    if let Some(cpus) = cpuset_cpus {
        draft.set("cpuset_cpus", Knob::CPUSET_CPUS, cpus.as_str())?;
    }
    for (size, limit) in hugepages {
        let (knob, reserved) = (Knob::hugetlb_max(size), Knob::hugetlb_reserved_max(size));
        // The kubelet forbids every size of the host, with or without the controller: a missing
        // controller is not an error.
        if draft.now(&knob).is_none() && *limit == Bytes(0) {
            continue;
        }
        draft.set("hugepage_limits", knob, limit.to_string())?;
        if draft.now(&reserved).is_some() {
            draft.set("hugepage_limits", reserved, limit.to_string())?;
        }
    }
    // Last, so that a raw setting overrides the typed one for the same file.
    for (key, value) in unified {
        draft.set("unified", Knob::unified(key), value.as_str())?;
    }
    Ok(())
}

fn memory(draft: &mut PlanBuilder<'_>, patch: &LimitsPatch) -> Result<(), PlanError> {
    const MEMORY: &str = "memory_limit_in_bytes";
    const SWAP: &str = "memory_swap_limit_in_bytes";
    if let Some(memory) = patch.memory {
        draft.set(MEMORY, Knob::MEMORY_MAX, text(memory.bytes()))?;
    }
    let Some(swap) = patch.memory_swap else { return Ok(()) };
    let memory = match patch.memory {
        Some(memory) => memory.bytes(),
        None => draft.limit(MEMORY, &Knob::MEMORY_MAX)?,
    };
    // CRI has the sum of memory and swap, the kernel has swap alone; "no swap" is written as 0.
    let alone = match (swap.bytes(), memory) {
        (None, _) => None,
        (Some(both), Some(memory)) if memory <= both => Some(Bytes(both.0 - memory.0)),
        (Some(memory_swap), memory) => return Err(PlanError::SwapBelowMemory { memory: Limit(memory), memory_swap }),
    };
    // A kernel without swap accounting has no such file; there the kernel does not limit swap
    // anyway.
    if draft.now(&Knob::SWAP_MAX).is_none() && alone.is_none_or(|swap| swap == Bytes(0)) {
        return Ok(());
    }
    draft.set(SWAP, Knob::SWAP_MAX, text(alone))
}

fn text(limit: Option<Bytes>) -> String {
    limit.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string())
}

/// Quota and period share a file, so the value that the patch omits is written unchanged.
fn bandwidth(draft: &mut PlanBuilder<'_>, patch: &LimitsPatch) -> Result<(), PlanError> {
    let field = match (patch.cpu_quota, patch.cpu_period) {
        (None, None) => return Ok(()),
        (Some(_), _) => "cpu_quota",
        (None, Some(_)) => "cpu_period",
    };
    let had = draft.need(field, &Knob::CPU_MAX)?;
    let Value::Bandwidth { quota: had_quota, period: Some(had_period) } = *had.value() else {
        return Err(Knob::CPU_MAX.unreadable(had).into());
    };
    let quota = match patch.cpu_quota {
        None => had_quota,
        Some(CpuQuota::Unlimited) => None,
        Some(CpuQuota::Micros(micros)) => Some(micros.0),
    };
    let quota = quota.map_or_else(|| "max".to_owned(), |micros| micros.to_string());
    let period = patch.cpu_period.map_or(had_period, |period| period.micros().0);
    draft.set(field, Knob::CPU_MAX, format!("{quota} {period}"))
}

/// The weight for CRI's shares: ⌈10^((l² + 125·l) ÷ 612 − 7 ÷ 34)⌉ with l = log₂ shares. The curve
/// passes through the ends of both scales (2 → 1, 262144 → 10000) and their defaults (1024 → 100),
/// as in recent versions of runc and crun.
pub fn weight(shares: CpuShares) -> u16 {
    let log = f64::from(shares.get()).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    // Shares are 2 to 262144, so the curve is within 1 to 10000 except for rounding.
    let weight = 10_f64.powf(exponent).ceil().clamp(1.0, 10_000.0);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number between 1 and 10000 fits"
    )]
    let weight = weight as u16;
    weight
}

/// The knobs that [`observe`] reads.
pub(crate) fn observed_knobs(sizes: &[HugePageSize]) -> Vec<Knob> {
    let mut knobs =
        vec![Knob::CPU_MAX, Knob::CPU_WEIGHT, Knob::MEMORY_MAX, Knob::SWAP_MAX, Knob::CPUSET_CPUS, Knob::CPUSET_MEMS];
    knobs.extend(sizes.iter().map(Knob::hugetlb_max));
    knobs
}

pub(crate) fn observe(now: &Values, sizes: &[HugePageSize]) -> Result<ObservedLimits, Unreadable> {
    let mut observed = ObservedLimits::default();
    let mut swap = None;
    for (knob, value) in now {
        match knob.file() {
            "cpu.max" => {
                let Value::Bandwidth { quota, period: Some(period) } = *value.value() else {
                    return Err(knob.unreadable(value));
                };
                (observed.cpu_quota, observed.cpu_period) = (quota.map(Micros), Some(Micros(period)));
            }
            // 0 if cpu.idle is set: there is no weight then.
            "cpu.weight" => {
                observed.cpu_weight = knob.number(value)?.and_then(|n| CpuWeight::new(n).ok());
            }
            "memory.max" => observed.memory = knob.limit(value)?,
            "memory.swap.max" => swap = knob.limit(value)?,
            // Empty if the parent's set is active.
            "cpuset.cpus" => observed.cpuset_cpus = value.set(),
            "cpuset.mems" => observed.cpuset_mems = value.set(),
            _ => {}
        }
    }
    if let (Some(memory), Some(swap)) = (observed.memory, swap) {
        observed.memory_swap = memory.0.checked_add(swap.0).map(Bytes);
    }
    for size in sizes {
        let knob = Knob::hugetlb_max(size);
        if let Some(value) = now.get(&knob)
            && let Some(limit) = knob.limit(value)?
        {
            observed.hugepages.insert(size.clone(), limit);
        }
    }
    Ok(observed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_converted_to_weights() {
        // 1024 shares and a weight of 100 are the defaults.
        for (shares, expected) in
            [(2, 1), (3, 2), (102, 17), (256, 35), (512, 59), (1024, 100), (2048, 174), (262_144, 10_000)]
        {
            assert_eq!(weight(CpuShares::new(shares).unwrap()), expected, "{shares} shares");
        }
    }

    #[test]
    fn more_shares_never_give_a_lower_weight() {
        let weights: Vec<u16> = (2..=262_144).step_by(17).map(|s| weight(CpuShares::new(s).unwrap())).collect();
        assert!(weights.is_sorted());
    }
}
