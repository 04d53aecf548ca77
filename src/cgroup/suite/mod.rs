//! Tests of the engine that run with the fake cgroup and with the kernel.

mod effective;
mod faults;
mod forecast;
mod independent_reader;
mod memory_load;

use model::ErrorClass as _;
use model::resources::{
    Bytes, CpuPeriod, CpuQuota, CpuSet, CpuShares, HugePageSize, LimitsPatch, MemoryLimit, Micros, ObservedLimits,
    UnifiedKey,
};

use crate::fake::FakeCgroup;
use crate::layout::Version;
use crate::limits::apply;
pub(crate) use crate::limits::apply::{ApplyError, CurrentLimits, Drift, RecoveryOutcome};
pub(crate) use crate::limits::knob::{AppliedValue, AppliedValues, CgroupFs, Knob};
pub(crate) use crate::limits::plan::PlanError;
use crate::tests::Throwaway;

const MIB: u64 = 1 << 20;

/// Defines each function as three tests: with the fake v1 and v2 cgroups, and with the kernel.
macro_rules! on_fake_and_kernel {
    ($($name:ident)*) => {
        mod fake_v1 { $(#[test] fn $name() { super::$name(&super::FakeCgroup::v1()); })* }
        mod fake_v2 { $(#[test] fn $name() { super::$name(&super::FakeCgroup::v2()); })* }
        mod kernel {
            $(
                #[test]
                #[ignore = "needs root"]
                fn $name() { super::$name(&super::Throwaway::new().group); }
            )*
        }
    };
}

on_fake_and_kernel! {
    applied_limits_are_active
    memory_and_swap_rise_and_fall_together
    memory_alone_can_change_below_the_swap_limit
    a_limit_that_is_not_whole_pages_is_accepted
    a_patch_changes_only_the_limits_that_it_names
    a_quota_can_be_lifted
    quota_and_period_change_together_in_any_direction
    applying_equal_values_changes_nothing
    a_swap_limit_below_the_memory_limit_is_refused
    a_zero_limit_of_missing_huge_pages_is_accepted
    raw_v2_settings_are_accepted_on_v2_and_refused_on_v1
    a_refused_write_undoes_the_earlier_ones
    a_value_that_another_process_wrote_is_drift
    a_rolled_back_change_restores_all_values
    a_change_interrupted_at_any_step_is_finished_or_undone
}

fn apply(fs: &impl CgroupFs, patch: &LimitsPatch) -> Result<ObservedLimits, ApplyError> {
    let settings = apply::apply(fs, patch)?;
    let now = apply::observe(fs, &settings)?;
    assert_eq!(now.drift, [], "right after a change");
    Ok(now.observed)
}

fn observe(fs: &impl CgroupFs) -> Result<ObservedLimits, ApplyError> {
    Ok(apply::observe(fs, &AppliedValues::new())?.observed)
}

fn memory(mib: u64) -> Option<MemoryLimit> {
    Some(MemoryLimit::Bytes(Bytes(mib * MIB)))
}

fn quota(micros: i64) -> Option<CpuQuota> {
    Some(CpuQuota::new(micros).unwrap())
}

fn both(mib: u64) -> LimitsPatch {
    LimitsPatch { memory: memory(mib), memory_swap: memory(mib), ..LimitsPatch::default() }
}

fn everything() -> LimitsPatch {
    LimitsPatch {
        cpu_quota: quota(50_000),
        cpu_period: Some(CpuPeriod::new(100_000).unwrap()),
        cpu_shares: Some(CpuShares::new(512).unwrap()),
        cpuset_cpus: Some(CpuSet::new("0").unwrap()),
        cpuset_mems: Some(CpuSet::new("0").unwrap()),
        ..both(64)
    }
}

fn applied_limits_are_active(fs: &impl CgroupFs) {
    let now = apply(fs, &everything()).unwrap();
    assert_eq!(now.cpu_quota, Some(Micros(50_000)));
    assert_eq!(now.cpu_period, Some(Micros(100_000)));
    match fs.version() {
        Version::V1 => assert_eq!(now.cpu_shares, Some(CpuShares::new(512).unwrap())),
        Version::V2 => assert_eq!(now.cpu_weight.unwrap().get(), 59),
    }
    assert_eq!(now.memory, Some(Bytes(64 * MIB)));
    assert_eq!(now.memory_swap, Some(Bytes(64 * MIB)));
    assert_eq!(now.cpuset_cpus, Some(CpuSet::new("0").unwrap()));
    assert_eq!(now, observe(fs).unwrap());
}

fn memory_and_swap_rise_and_fall_together(fs: &impl CgroupFs) {
    for (memory_mib, swap_mib) in [(64, 64), (256, 256), (32, 32), (32, 128), (64, 64), (16, 512), (512, 512)] {
        let patch = LimitsPatch { memory: memory(memory_mib), memory_swap: memory(swap_mib), ..LimitsPatch::default() };
        let now = apply(fs, &patch).unwrap();
        assert_eq!(now.memory, Some(Bytes(memory_mib * MIB)));
        assert_eq!(now.memory_swap, Some(Bytes(swap_mib * MIB)), "{memory_mib} of {swap_mib}");
    }
    let unlimited = Some(MemoryLimit::Unlimited);
    let now = apply(fs, &LimitsPatch { memory: unlimited, memory_swap: unlimited, ..LimitsPatch::default() }).unwrap();
    assert_eq!((now.memory, now.memory_swap), (None, None));
}

fn memory_alone_can_change_below_the_swap_limit(fs: &impl CgroupFs) {
    apply(fs, &both(64)).unwrap();
    let now = apply(fs, &LimitsPatch { memory: memory(32), ..LimitsPatch::default() }).unwrap();
    assert_eq!(now.memory, Some(Bytes(32 * MIB)));
    // v1 limits the sum, v2 swap alone: each file keeps its value.
    let sum = match fs.version() {
        Version::V1 => 64,
        Version::V2 => 32,
    };
    assert_eq!(now.memory_swap, Some(Bytes(sum * MIB)));
}

fn a_limit_that_is_not_whole_pages_is_accepted(fs: &impl CgroupFs) {
    let patch = LimitsPatch { memory: Some(MemoryLimit::Bytes(Bytes(64 * MIB + 1))), ..LimitsPatch::default() };
    assert_eq!(apply(fs, &patch).unwrap().memory, Some(Bytes(64 * MIB)));
}

fn a_patch_changes_only_the_limits_that_it_names(fs: &impl CgroupFs) {
    let before = apply(fs, &everything()).unwrap();
    let mut cpus = LimitsPatch { cpuset_cpus: Some(CpuSet::new("0").unwrap()), ..LimitsPatch::default() };
    assert_eq!(apply(fs, &cpus).unwrap(), before);
    cpus.cpu_quota = quota(70_000);
    assert_eq!(apply(fs, &cpus).unwrap(), ObservedLimits { cpu_quota: Some(Micros(70_000)), ..before.clone() });
    let period = LimitsPatch { cpu_period: Some(CpuPeriod::new(50_000).unwrap()), ..LimitsPatch::default() };
    let now = apply(fs, &period).unwrap();
    assert_eq!((now.cpu_quota, now.cpu_period), (Some(Micros(70_000)), Some(Micros(50_000))));
    assert_eq!(apply(fs, &LimitsPatch::default()).unwrap(), now);
}

fn a_quota_can_be_lifted(fs: &impl CgroupFs) {
    apply(fs, &everything()).unwrap();
    let now = apply(fs, &LimitsPatch { cpu_quota: quota(-1), ..LimitsPatch::default() }).unwrap();
    assert_eq!((now.cpu_quota, now.cpu_period), (None, Some(Micros(100_000))));
}

fn quota_and_period_change_together_in_any_direction(fs: &impl CgroupFs) {
    let ends = [(50_000, 100_000), (20_000, 20_000), (-1, 40_000), (200_000, 100_000), (10_000, 200_000), (1000, 1000)];
    for (from_quota, from_period) in ends {
        for (to_quota, to_period) in ends {
            for (micros, period) in [(from_quota, from_period), (to_quota, to_period)] {
                let cpu_period = Some(CpuPeriod::new(period).unwrap());
                let patch = LimitsPatch { cpu_quota: quota(micros), cpu_period, ..LimitsPatch::default() };
                let now = apply(fs, &patch).unwrap();
                assert_eq!(now.cpu_quota, u64::try_from(micros).ok().map(Micros));
                assert_eq!(now.cpu_period, u64::try_from(period).ok().map(Micros));
            }
        }
    }
}

fn applying_equal_values_changes_nothing(fs: &impl CgroupFs) {
    let once = apply(fs, &everything()).unwrap();
    assert_eq!(apply(fs, &everything()).unwrap(), once);
}

fn a_swap_limit_below_the_memory_limit_is_refused(fs: &impl CgroupFs) {
    let before = apply(fs, &both(64)).unwrap();
    for patch in [
        LimitsPatch { memory: memory(128), memory_swap: memory(96), ..LimitsPatch::default() },
        LimitsPatch { memory_swap: memory(32), ..LimitsPatch::default() },
        LimitsPatch { memory: Some(MemoryLimit::Unlimited), memory_swap: memory(96), ..LimitsPatch::default() },
    ] {
        let refused = apply(fs, &patch).unwrap_err();
        assert!(matches!(refused, ApplyError::Refused(PlanError::SwapBelowMemory { .. })), "{refused:?}");
        assert_eq!(refused.kind(), model::ErrorKind::Invalid);
    }
    assert_eq!(observe(fs).unwrap(), before);
}

fn a_zero_limit_of_missing_huge_pages_is_accepted(fs: &impl CgroupFs) {
    let size = HugePageSize::new("4KB").unwrap();
    let mut patch = LimitsPatch { hugepages: [(size.clone(), Bytes(0))].into(), ..both(64) };
    assert_eq!(apply(fs, &patch).unwrap().memory, Some(Bytes(64 * MIB)));
    patch.hugepages.insert(size, Bytes(4096));
    patch.memory = memory(32);
    let refused = apply(fs, &patch).unwrap_err();
    let ApplyError::Refused(reason) = refused else { panic!("{refused:?}") };
    assert!(reason.to_string().starts_with("hugepage_limits requires the cgroup controller hugetlb"), "{reason}");
    assert_eq!(observe(fs).unwrap().memory, Some(Bytes(64 * MIB)), "refused before the first write");
}

fn raw_v2_settings_are_accepted_on_v2_and_refused_on_v1(fs: &impl CgroupFs) {
    let unified = |key: &str, value: &str| [(UnifiedKey::new(key).unwrap(), value.to_owned())].into();
    let high = LimitsPatch { unified: unified("memory.high", "33554432"), ..both(64) };
    let outcome = apply(fs, &high);
    if fs.version() == Version::V1 {
        let refused = outcome.unwrap_err();
        assert!(matches!(&refused, ApplyError::Refused(PlanError::UnifiedOnV1(keys)) if keys == &["memory.high"]));
        assert_eq!(observe(fs).unwrap().memory, None);
        return;
    }
    outcome.unwrap();
    assert_eq!(fs.read(&crate::Knob::named("memory.high")).unwrap(), "33554432");
    let absent = apply(fs, &LimitsPatch { unified: unified("memory.nonsense", "1"), ..LimitsPatch::default() });
    assert!(matches!(absent, Err(ApplyError::Refused(PlanError::Missing { field: "unified", .. }))));
    let now = apply(fs, &LimitsPatch { unified: unified("memory.max", "max"), ..both(64) }).unwrap();
    assert_eq!(now.memory, None, "the raw setting overrides the typed one");
}

fn a_refused_write_undoes_the_earlier_ones(fs: &impl CgroupFs) {
    let before = apply(fs, &everything()).unwrap();
    let patch =
        LimitsPatch { cpu_quota: quota(80_000), cpuset_cpus: Some(CpuSet::new("0-1048575").unwrap()), ..both(128) };
    let failed = apply(fs, &patch).unwrap_err();
    assert!(
        matches!(&failed, ApplyError::Write { file, value, left, .. }
            if file.ends_with("cpuset.cpus") && value == "0-1048575" && left.is_empty()),
        "{failed:?}"
    );
    assert_eq!(observe(fs).unwrap(), before);
}

fn a_value_that_another_process_wrote_is_drift(fs: &impl CgroupFs) {
    let settings = apply::apply(fs, &everything()).unwrap();
    let (knob, value) = match fs.version() {
        Version::V1 => (Knob::CFS_QUOTA, "70000"),
        Version::V2 => (Knob::CPU_MAX, "70000 100000"),
    };
    fs.write(&knob, value).unwrap();
    let now = apply::observe(fs, &settings).unwrap();
    assert_eq!(now.observed.cpu_quota, Some(Micros(70_000)), "status shows the kernel's value");
    let AppliedValue { written: wrote, read_back: reads } = settings[&knob].clone();
    assert_eq!(now.drift, [Drift { knob, wrote, read: reads, found: Some(value.to_owned()) }]);
    let again = apply::apply(fs, &everything()).unwrap();
    assert_eq!((apply::observe(fs, &again).unwrap().drift, again), (vec![], settings));
}

/// A change of every kind of file, from the values of `everything`.
fn larger() -> LimitsPatch {
    LimitsPatch {
        cpu_quota: quota(80_000),
        cpu_period: Some(CpuPeriod::new(50_000).unwrap()),
        cpu_shares: Some(CpuShares::new(2048).unwrap()),
        ..both(128)
    }
}

fn a_rolled_back_change_restores_all_values(fs: &impl CgroupFs) {
    for (from, to) in [(everything(), larger()), (larger(), everything())] {
        let before = apply(fs, &from).unwrap();
        let change = apply::prepare(fs, &to).unwrap();
        apply::commit(fs, &change).unwrap();
        assert_ne!(observe(fs).unwrap(), before);
        apply::commit(fs, &change.reversed()).unwrap();
        assert_eq!(observe(fs).unwrap(), before);
    }
}

fn a_change_interrupted_at_any_step_is_finished_or_undone(fs: &impl CgroupFs) {
    for (from, to) in [(everything(), larger()), (larger(), everything())] {
        let before = apply(fs, &from).unwrap();
        let change = apply::prepare(fs, &to).unwrap();
        for cut in 0..=change.writes.len() {
            for write in &change.writes[..cut] {
                fs.write(&write.knob, write.want.text()).unwrap();
            }
            let settled = apply::recover(fs, &change).unwrap();
            let now = observe(fs).unwrap();
            match settled {
                RecoveryOutcome::Undone => assert_eq!(now, before, "interrupted after {cut} writes"),
                RecoveryOutcome::Finished(settings) => {
                    assert_eq!(cut, change.writes.len());
                    assert_eq!(apply::observe(fs, &settings).unwrap(), CurrentLimits { observed: now, drift: vec![] });
                }
            }
        }
    }
}
