//! The order of changes of a pod and its containers, as in KEP-1287.
//!
//! Memory goes before CPU. For each: the pod's limit is raised first, then containers are lowered,
//! then containers are raised, and the pod's limit is lowered last. So containers never have more
//! than their pod, and the steps that may be refused come before the steps that give resources to
//! other containers.

use std::cmp::Ordering;

use model::resources::{CpuQuota, LimitsPatch, MemoryLimit};

use super::super::units::PERIOD;
use super::quantity_arg::{cpu_micros, memory_bytes};

/// Current limits, and the limits to change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LimitsChange {
    pub(super) now: LimitsPatch,
    pub(super) to: LimitsPatch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Pod,
    /// Index in the list of containers.
    Container(usize),
}

/// One call, and the limits for its rollback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) owner: Owner,
    pub(super) to: LimitsPatch,
    pub(super) back: LimitsPatch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Memory,
    Cpu,
    /// Fields without an order: sets of CPUs and memory nodes.
    Rest,
}

/// Returns the steps; steps without a change are left out.
pub(super) fn steps(pod: &LimitsChange, containers: &[LimitsChange]) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in [Part::Memory, Part::Cpu, Part::Rest] {
        let pod_part = pod.part(part);
        steps.extend(pod_part.only(Ordering::Greater).step(Owner::Pod));
        let parts: Vec<(usize, LimitsChange)> = containers.iter().map(|one| one.part(part)).enumerate().collect();
        let lowered = |(_, one): &&(usize, LimitsChange)| one.direction(part) == Ordering::Less;
        let (down, up): (Vec<_>, Vec<_>) = parts.iter().partition(lowered);
        steps.extend(down.into_iter().chain(up).filter_map(|(index, one)| one.step(Owner::Container(*index))));
        steps.extend(pod_part.only(Ordering::Less).step(Owner::Pod));
    }
    steps
}

impl LimitsChange {
    /// Returns the fields of one part whose values change.
    fn part(&self, part: Part) -> LimitsChange {
        let LimitsPatch { cpu_quota, cpu_period, cpu_shares, memory, memory_swap, cpuset_cpus, cpuset_mems, .. } =
            self.to.clone();
        let now = &self.now;
        let to = match part {
            Part::Memory => LimitsPatch {
                memory: memory.filter(|to| *to != now.memory.unwrap_or(MemoryLimit::Unlimited)),
                memory_swap: memory_swap.filter(|to| now.memory_swap != Some(*to)),
                ..LimitsPatch::default()
            },
            Part::Cpu => {
                let same = cpu_quota.is_none_or(|to| to == now.cpu_quota.unwrap_or(CpuQuota::Unlimited))
                    && cpu_period.is_none_or(|to| now.cpu_period == Some(to));
                LimitsPatch {
                    cpu_quota: cpu_quota.filter(|_| !same),
                    cpu_period: cpu_period.filter(|_| !same),
                    cpu_shares: cpu_shares.filter(|to| now.cpu_shares != Some(*to)),
                    ..LimitsPatch::default()
                }
            }
            Part::Rest => LimitsPatch {
                cpuset_cpus: cpuset_cpus.filter(|to| now.cpuset_cpus.as_ref() != Some(to)),
                cpuset_mems: cpuset_mems.filter(|to| now.cpuset_mems.as_ref() != Some(to)),
                ..LimitsPatch::default()
            },
        };
        LimitsChange { now: self.now.clone(), to }
    }

    fn cpu_order(&self) -> Ordering {
        if self.to.cpu_quota.is_none() && self.to.cpu_period.is_none() {
            return Ordering::Equal;
        }
        let then = self.now.clone().merged(&self.to);
        compare(cpus(&then), cpus(&self.now))
    }

    fn shares_order(&self) -> Ordering {
        self.to.cpu_shares.map_or(Ordering::Equal, |to| Some(to).cmp(&self.now.cpu_shares))
    }

    fn memory_order(&self) -> Ordering {
        let bytes = |limit: Option<MemoryLimit>| limit.and_then(memory_bytes).map(u128::from);
        self.to.memory.map_or(Ordering::Equal, |to| compare(bytes(Some(to)), bytes(self.now.memory)))
    }

    fn swap_order(&self) -> Ordering {
        let bytes = |limit: Option<MemoryLimit>| limit.and_then(memory_bytes).map(u128::from);
        self.to.memory_swap.map_or(Ordering::Equal, |to| compare(bytes(Some(to)), bytes(self.now.memory_swap)))
    }

    /// Compares by limit; if the limit stays the same, by request.
    fn direction(&self, part: Part) -> Ordering {
        match part {
            Part::Memory => self.memory_order().then(self.swap_order()),
            Part::Cpu => self.cpu_order().then(self.shares_order()),
            Part::Rest => Ordering::Equal,
        }
    }

    /// Returns the fields that change in this direction.
    fn only(&self, direction: Ordering) -> LimitsChange {
        let cpu = self.cpu_order() == direction;
        let to = LimitsPatch {
            cpu_quota: self.to.cpu_quota.filter(|_| cpu),
            cpu_period: self.to.cpu_period.filter(|_| cpu),
            cpu_shares: self.to.cpu_shares.filter(|_| self.shares_order() == direction),
            memory: self.to.memory.filter(|_| self.memory_order() == direction),
            memory_swap: self.to.memory_swap.filter(|_| self.swap_order() == direction),
            ..LimitsPatch::default()
        };
        LimitsChange { now: self.now.clone(), to }
    }

    fn step(&self, owner: Owner) -> Option<Step> {
        let LimitsChange { now, to } = self;
        if *to == LimitsPatch::default() {
            return None;
        }
        let unlimited = |limit: Option<MemoryLimit>| Some(limit.unwrap_or(MemoryLimit::Unlimited));
        let back = LimitsPatch {
            cpu_quota: to.cpu_quota.and(Some(now.cpu_quota.unwrap_or(CpuQuota::Unlimited))),
            cpu_period: to.cpu_period.and(now.cpu_period),
            cpu_shares: to.cpu_shares.and(now.cpu_shares),
            memory: to.memory.and(unlimited(now.memory)),
            memory_swap: to.memory_swap.and(unlimited(now.memory_swap)),
            cpuset_cpus: to.cpuset_cpus.as_ref().and(now.cpuset_cpus.clone()),
            cpuset_mems: to.cpuset_mems.as_ref().and(now.cpuset_mems.clone()),
            ..LimitsPatch::default()
        };
        Some(Step { owner, to: to.clone(), back })
    }
}

/// Compares limits; None means unlimited, which is more than any limit.
pub(super) fn compare(a: Option<u128>, b: Option<u128>) -> Ordering {
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => a.cmp(&b),
    }
}

/// Returns the limit in billionths of a CPU; None without a limit.
pub(super) fn cpus(patch: &LimitsPatch) -> Option<u128> {
    let micros = cpu_micros(patch.cpu_quota?)?;
    let period = patch.cpu_period.map_or(PERIOD, |period| period.micros().0);
    Some(u128::from(micros) * 1_000_000_000 / u128::from(period))
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
