//! Plans and reads limits with the files of cgroup v1.

use model::resources::{Bytes, CpuQuota, CpuShares, HugePageSize, LimitsPatch, MemoryLimit, Micros, ObservedLimits};

use crate::limits::knob::{Knob, Unreadable, Values};
use crate::limits::plan::{Limit, PlanBuilder, PlanError};

pub(crate) fn knobs(patch: &LimitsPatch) -> Vec<Knob> {
    let mut knobs = Vec::new();
    if patch.memory.is_some() || patch.memory_swap.is_some() {
        knobs.extend([Knob::MEMORY_LIMIT, Knob::MEMSW_LIMIT]);
    }
    if patch.cpu_quota.is_some() || patch.cpu_period.is_some() {
        knobs.extend([Knob::CFS_QUOTA, Knob::CFS_PERIOD]);
    }
    knobs.extend(patch.cpu_shares.map(|_| Knob::CPU_SHARES));
    knobs.extend(patch.cpuset_mems.as_ref().map(|_| Knob::CPUSET_MEMS));
    knobs.extend(patch.cpuset_cpus.as_ref().map(|_| Knob::CPUSET_CPUS));
    knobs.extend(patch.hugepages.keys().map(Knob::hugetlb_limit));
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
    if !unified.is_empty() {
        return Err(PlanError::UnifiedOnV1(unified.keys().map(|k| k.as_str().to_owned()).collect()));
    }
    memory(draft, patch)?;
    bandwidth(draft, patch)?;
    if let Some(shares) = cpu_shares {
        draft.set("cpu_shares", Knob::CPU_SHARES, shares.get().to_string())?;
    }
    if let Some(mems) = cpuset_mems {
        draft.set("cpuset_mems", Knob::CPUSET_MEMS, mems.as_str())?;
    }
    if let Some(cpus) = cpuset_cpus {
        draft.set("cpuset_cpus", Knob::CPUSET_CPUS, cpus.as_str())?;
    }
    for (size, limit) in hugepages {
        let knob = Knob::hugetlb_limit(size);
        // The kubelet forbids every size of the host, with or without the controller: a missing
        // controller is not an error.
        if draft.now(&knob).is_some() || *limit != Bytes(0) {
            draft.set("hugepage_limits", knob, limit.to_string())?;
        }
    }
    Ok(())
}

/// The kernel keeps memory ≤ memory + swap at all times; the plan orders the two accordingly.
fn memory(draft: &mut PlanBuilder<'_>, patch: &LimitsPatch) -> Result<(), PlanError> {
    const MEMORY: &str = "memory_limit_in_bytes";
    const SWAP: &str = "memory_swap_limit_in_bytes";
    let memory = match patch.memory {
        Some(memory) => memory.bytes(),
        None if patch.memory_swap.is_some() => draft.limit(MEMORY, &Knob::MEMORY_LIMIT)?,
        None => return Ok(()),
    };
    match patch.memory_swap {
        Some(swap) => fits(memory, swap.bytes())?,
        // Without a new swap limit, memory has to fit below the active one, on hosts that count
        // swap.
        None if draft.now(&Knob::MEMSW_LIMIT).is_some() => fits(memory, draft.limit(SWAP, &Knob::MEMSW_LIMIT)?)?,
        None => {}
    }
    if let Some(memory) = patch.memory {
        draft.set(MEMORY, Knob::MEMORY_LIMIT, text(memory))?;
    }
    match patch.memory_swap {
        Some(swap) => draft.set(SWAP, Knob::MEMSW_LIMIT, text(swap)),
        None => Ok(()),
    }
}

/// Whether a limit is at most another one.
fn at_most(a: Option<Bytes>, b: Option<Bytes>) -> bool {
    match (a, b) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(a), Some(b)) => a <= b,
    }
}

fn fits(memory: Option<Bytes>, memory_swap: Option<Bytes>) -> Result<(), PlanError> {
    match memory_swap {
        Some(memory_swap) if !at_most(memory, Some(memory_swap)) => {
            Err(PlanError::SwapBelowMemory { memory: Limit(memory), memory_swap })
        }
        Some(_) | None => Ok(()),
    }
}

fn text(limit: MemoryLimit) -> String {
    limit.bytes().map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string())
}

/// Quota and period are two files, and the kernel compares quota ÷ period with the parent after
/// each write: the intermediate state must not exceed both ends.
fn bandwidth(draft: &mut PlanBuilder<'_>, patch: &LimitsPatch) -> Result<(), PlanError> {
    const QUOTA: &str = "cpu_quota";
    const PERIOD: &str = "cpu_period";
    let period = patch.cpu_period.map(|period| period.micros().to_string());
    let quota = patch.cpu_quota.map(|quota| match quota {
        CpuQuota::Unlimited => "-1".to_owned(),
        CpuQuota::Micros(micros) => micros.to_string(),
    });
    let (quota, period) = match (quota, period) {
        (Some(quota), Some(period)) => (quota, period),
        (Some(quota), None) => return draft.set(QUOTA, Knob::CFS_QUOTA, quota),
        (None, Some(period)) => return draft.set(PERIOD, Knob::CFS_PERIOD, period),
        (None, None) => return Ok(()),
    };
    let had_quota = Knob::CFS_QUOTA.number(draft.need(QUOTA, &Knob::CFS_QUOTA)?)?;
    let had_period = Knob::CFS_PERIOD.number(draft.need(PERIOD, &Knob::CFS_PERIOD)?)?;
    let longer = patch.cpu_period.map(|period| period.micros().0) > had_period;
    let more = match patch.cpu_quota {
        Some(CpuQuota::Micros(quota)) => Some(quota.0) > had_quota,
        Some(CpuQuota::Unlimited) | None => false,
    };
    // Without a quota the period has no effect. If both grow, the larger quota in the old, shorter
    // period would exceed both ends.
    let period_first = had_quota.is_none() || (longer && more);
    if period_first {
        draft.set(PERIOD, Knob::CFS_PERIOD, period)?;
        draft.set(QUOTA, Knob::CFS_QUOTA, quota)
    } else {
        draft.set(QUOTA, Knob::CFS_QUOTA, quota)?;
        draft.set(PERIOD, Knob::CFS_PERIOD, period)
    }
}

/// The knobs that [`observe`] reads.
pub(crate) fn observed_knobs(sizes: &[HugePageSize]) -> Vec<Knob> {
    let mut knobs = vec![
        Knob::CFS_QUOTA,
        Knob::CFS_PERIOD,
        Knob::CPU_SHARES,
        Knob::MEMORY_LIMIT,
        Knob::MEMSW_LIMIT,
        Knob::CPUSET_CPUS,
        Knob::CPUSET_MEMS,
    ];
    knobs.extend(sizes.iter().map(Knob::hugetlb_limit));
    knobs
}

pub(crate) fn observe(now: &Values, sizes: &[HugePageSize]) -> Result<ObservedLimits, Unreadable> {
    let mut observed = ObservedLimits::default();
    for (knob, value) in now {
        match knob.file() {
            "cpu.cfs_quota_us" => observed.cpu_quota = knob.number(value)?.map(Micros),
            "cpu.cfs_period_us" => observed.cpu_period = knob.number(value)?.map(Micros),
            "cpu.shares" => {
                let shares = knob.number(value)?.and_then(|shares| CpuShares::new(i64::try_from(shares).ok()?).ok());
                observed.cpu_shares = Some(shares.ok_or_else(|| knob.unreadable(value))?);
            }
            "memory.limit_in_bytes" => observed.memory = knob.limit(value)?,
            "memory.memsw.limit_in_bytes" => observed.memory_swap = knob.limit(value)?,
            "cpuset.cpus" => observed.cpuset_cpus = value.set(),
            "cpuset.mems" => observed.cpuset_mems = value.set(),
            _ => {}
        }
    }
    for size in sizes {
        let knob = Knob::hugetlb_limit(size);
        if let Some(value) = now.get(&knob)
            && let Some(limit) = knob.limit(value)?
        {
            observed.hugepages.insert(size.clone(), limit);
        }
    }
    Ok(observed)
}
