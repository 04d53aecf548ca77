//! Cases that only the fake can produce: failing writes, unreclaimable memory, and any sequence of changes.

use proptest::prelude::*;
use rustix::io::Errno;

use super::*;

#[test]
fn after_any_failed_write_all_values_are_as_before() {
    for env in [FakeCgroup::v1, FakeCgroup::v2] {
        let count = {
            let fs = env();
            apply(&fs, &everything()).unwrap();
            fs.log().len()
        };
        assert!(count >= 5);
        for failing in 0..count {
            let fs = env();
            let before = fs.files();
            fs.fail_after(failing, Errno::IO);
            let failed = apply(&fs, &everything()).unwrap_err();
            assert!(matches!(&failed, ApplyError::Write { left, .. } if left.is_empty()), "{failed:?}");
            assert_eq!(fs.files(), before, "after write {failing} failed");
        }
    }
}

#[test]
fn equal_values_are_not_written() {
    for fs in [FakeCgroup::v1(), FakeCgroup::v2()] {
        apply(&fs, &everything()).unwrap();
        let writes = fs.log().len();
        apply(&fs, &everything()).unwrap();
        assert_eq!(fs.log().len(), writes);
    }
}

#[test]
fn lowering_memory_below_usage_fails_on_both_versions_without_a_kill() {
    let v1 = FakeCgroup::v1().using(48 * MIB);
    apply(&v1, &both(64)).unwrap();
    let busy = apply(&v1, &both(32)).unwrap_err();
    assert_eq!(busy.kind(), model::ErrorKind::Precondition);
    assert_eq!(observe(&v1).unwrap().memory, Some(Bytes(64 * MIB)));

    let v2 = FakeCgroup::v2().using(48 * MIB);
    apply(&v2, &both(64)).unwrap();
    let refused = apply(&v2, &both(32)).unwrap_err();
    let ApplyError::BelowUsage { limit, usage, .. } = refused else { panic!("{refused:?}") };
    assert_eq!((limit, usage), (Bytes(32 * MIB), Bytes(48 * MIB)));
    assert_eq!(v2.oom_kills(), 0);
    apply(&v2, &both(50)).unwrap();
}

#[test]
fn page_cache_is_reclaimed_and_memory_high_is_reset() {
    for high in ["max", "41943040"] {
        let fs = FakeCgroup::v2().using(16 * MIB).caching(40 * MIB);
        apply(&fs, &both(64)).unwrap();
        fs.write(&Knob::MEMORY_HIGH, high).unwrap();
        let fs = fs.caching(40 * MIB);
        assert_eq!(apply(&fs, &both(32)).unwrap().memory, Some(Bytes(32 * MIB)));
        assert_eq!((fs.files()["memory.high"].as_str(), fs.oom_kills()), (high, 0));
        let brakes = fs.log().iter().filter(|(knob, _)| *knob == Knob::MEMORY_HIGH).count();
        assert_eq!(brakes, 3, "once by the test, down and up again by the engine");
    }
    let v1 = FakeCgroup::v1().using(16 * MIB).caching(40 * MIB);
    apply(&v1, &both(64)).unwrap();
    apply(&v1, &both(32)).unwrap();
}

#[test]
fn a_shrink_that_fails_late_resets_memory_high() {
    // With swap allowed, only an attempt shows whether the usage can fit.
    let fs = FakeCgroup::v2().using(48 * MIB);
    let some_swap = |mib| LimitsPatch { memory: memory(mib), memory_swap: memory(96), ..LimitsPatch::default() };
    apply(&fs, &some_swap(64)).unwrap();
    let before = fs.files();
    let refused = apply(&fs, &some_swap(32)).unwrap_err();
    assert!(matches!(refused, ApplyError::BelowUsage { .. }), "{refused:?}");
    assert!(
        fs.log().iter().any(|(knob, value)| *knob == Knob::MEMORY_HIGH && value == "33554432"),
        "memory.high was lowered"
    );
    assert_eq!((fs.files(), fs.oom_kills()), (before, 0));
}

#[test]
fn a_unified_memory_limit_kills_no_process() {
    let fs = FakeCgroup::v2().using(48 * MIB);
    apply(&fs, &both(64)).unwrap();
    for (limit, kind) in [
        ("33554432", model::ErrorKind::Precondition),
        ("32M", model::ErrorKind::Precondition),
        ("0x2000000", model::ErrorKind::Precondition),
        ("a little", model::ErrorKind::Invalid),
    ] {
        let unified = [(UnifiedKey::new("memory.max").unwrap(), limit.to_owned())].into();
        let refused = apply(&fs, &LimitsPatch { unified, ..LimitsPatch::default() }).unwrap_err();
        assert_eq!((refused.kind(), fs.oom_kills()), (kind, 0), "{limit}: {refused:?}");
    }
}

#[test]
fn a_raised_limit_in_use_is_not_rolled_back_by_an_oom_kill() {
    for env in [FakeCgroup::v1, FakeCgroup::v2] {
        let fs = env();
        apply(&fs, &both(32)).unwrap();
        let change = crate::limits::apply::prepare(&fs, &LimitsPatch { cpu_quota: quota(50_000), ..both(64) }).unwrap();
        assert_eq!(change.writes.last().unwrap().lowered_memory(), None, "memory is raised last");
        // Interrupted before the CPU writes; the raised memory is used at once.
        let raise = change.writes.iter().filter(|write| write.knob.file().starts_with("memory"));
        raise.for_each(|write| fs.write(&write.knob, write.want.text()).unwrap());
        let fs = fs.using(48 * MIB);
        assert!(matches!(crate::limits::apply::recover(&fs, &change).unwrap(), RecoveryOutcome::Finished(_)));
        assert_eq!((observe(&fs).unwrap().memory, fs.oom_kills()), (Some(Bytes(64 * MIB)), 0));
    }
}

#[test]
fn a_removed_cgroup_is_not_found() {
    for fs in [FakeCgroup::v1(), FakeCgroup::v2()] {
        fs.vanish();
        assert_eq!(apply(&fs, &everything()).unwrap_err().kind(), model::ErrorKind::NotFound);
        assert_eq!(observe(&fs).unwrap_err().kind(), model::ErrorKind::NotFound);
    }
}

#[test]
fn a_missing_controller_is_named() {
    let fs = FakeCgroup::v2().without("cpu.max");
    let ApplyError::Refused(refused) = apply(&fs, &everything()).unwrap_err() else { panic!("not refused") };
    assert_eq!(refused.to_string(), "cpu_quota requires the cgroup controller cpu: this host has no cpu.max");
}

#[test]
fn without_swap_accounting_v2_accepts_a_request_for_no_swap() {
    let fs = FakeCgroup::v2().without("memory.swap.max");
    apply(&fs, &both(64)).unwrap();
    let some = LimitsPatch { memory: memory(64), memory_swap: memory(96), ..LimitsPatch::default() };
    assert!(matches!(apply(&fs, &some), Err(ApplyError::Refused(PlanError::Missing { .. }))));
}

#[test]
fn huge_pages_are_limited_with_their_reservations() {
    let size = HugePageSize::new("2MB").unwrap();
    let patch = LimitsPatch { hugepages: [(size.clone(), Bytes(4 * MIB))].into(), ..LimitsPatch::default() };
    for fs in [FakeCgroup::v1(), FakeCgroup::v2()] {
        assert!(observe(&fs).unwrap().hugepages.is_empty());
        assert_eq!(apply(&fs, &patch).unwrap().hugepages.get(&size), Some(&Bytes(4 * MIB)));
    }
    let fs = FakeCgroup::v2();
    apply(&fs, &patch).unwrap();
    assert_eq!(fs.files()["hugetlb.2MB.rsvd.max"], "4194304");
}

prop_compose! {
    fn size()(memory in 1..64_u64, more in 0..64_u64) -> LimitsPatch {
        LimitsPatch {
            memory: Some(MemoryLimit::Bytes(Bytes(memory * MIB))),
            memory_swap: Some(MemoryLimit::Bytes(Bytes((memory + more) * MIB))),
            ..LimitsPatch::default()
        }
    }
}

prop_compose! {
    fn bandwidth()(quota in 1000..900_000_i64, period in 1000..=1_000_000_i64) -> (i64, i64) { (quota, period) }
}

fn bandwidth_patch((micros, period): (i64, i64)) -> LimitsPatch {
    let cpu_period = Some(CpuPeriod::new(period).unwrap());
    LimitsPatch { cpu_quota: quota(micros), cpu_period, ..LimitsPatch::default() }
}

proptest! {
    // proptest would write its file of failures beside the crates, where check-tree takes it for a crate.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_size_can_follow_any_other(sizes in prop::collection::vec(size(), 1..6)) {
        for fs in [FakeCgroup::v1(), FakeCgroup::v2()] {
            for size in &sizes {
                let now = apply(&fs, size).unwrap();
                prop_assert_eq!(now.memory, size.memory.unwrap().bytes());
                prop_assert_eq!(now.memory_swap, size.memory_swap.unwrap().bytes());
            }
        }
    }

    #[test]
    fn no_intermediate_step_exceeds_the_larger_cpu_limit(from in bandwidth(), to in bandwidth()) {
        // A parent whose quota is exactly the larger of both ends.
        let larger = if from.0 * to.1 > to.0 * from.1 { from } else { to };
        let parent = (u64::try_from(larger.0).unwrap(), u64::try_from(larger.1).unwrap());
        let fs = FakeCgroup::v1().under(parent.0, parent.1);
        apply(&fs, &bandwidth_patch(from)).unwrap();
        apply(&fs, &bandwidth_patch(to)).unwrap();
    }

    #[test]
    fn no_intermediate_step_exceeds_the_larger_memory_limit(from in size(), to in size()) {
        for fs in [FakeCgroup::v1(), FakeCgroup::v2()] {
            apply(&fs, &from).unwrap();
            let change = crate::limits::apply::prepare(&fs, &to).unwrap();
            let most = from.memory.unwrap().bytes().max(to.memory.unwrap().bytes());
            let swap = from.memory_swap.unwrap().bytes().max(to.memory_swap.unwrap().bytes());
            for write in &change.writes {
                fs.write(&write.knob, write.want.text()).unwrap();
                let now = observe(&fs).unwrap();
                prop_assert!(now.memory <= most, "{:?} after {write:?}", now.memory);
                prop_assert!(fs.version() == Version::V2 || now.memory_swap <= swap);
            }
        }
    }

    #[test]
    fn any_order_of_requests_ends_with_the_last_requested_limits(
        sizes in prop::collection::vec((size(), bandwidth()), 1..5),
        used in 0..32_u64,
    ) {
        for fs in [FakeCgroup::v1().using(used * MIB), FakeCgroup::v2().using(used * MIB)] {
            let mut asked = None;
            for (size, cpu) in &sizes {
                let patch = size.clone().merged(&bandwidth_patch(*cpu));
                match apply(&fs, &patch) {
                    Ok(now) => asked = Some(now),
                    Err(refused) => prop_assert_eq!(refused.kind(), model::ErrorKind::Precondition),
                }
            }
            if let Some(asked) = asked {
                prop_assert_eq!(observe(&fs).unwrap(), asked);
            }
            prop_assert_eq!(fs.oom_kills(), 0);
        }
    }

    #[test]
    fn applying_and_undoing_restores_all_values(
        from in size(), to in size(), cpu in bandwidth(), other in bandwidth(), used in 0..8_u64,
    ) {
        for fs in [FakeCgroup::v1().caching(used * MIB), FakeCgroup::v2().caching(used * MIB)] {
            apply(&fs, &from.clone().merged(&bandwidth_patch(cpu))).unwrap();
            let before = fs.files();
            let change = crate::limits::apply::prepare(&fs, &to.clone().merged(&bandwidth_patch(other))).unwrap();
            crate::limits::apply::commit(&fs, &change).unwrap();
            crate::limits::apply::commit(&fs, &change.reversed()).unwrap();
            prop_assert_eq!(fs.files(), before);
        }
    }

    #[test]
    fn undoing_an_applied_change_gives_the_old_values(from in size(), to in size(), failing in 0..3_usize) {
        for fs in [FakeCgroup::v1(), FakeCgroup::v2()] {
            apply(&fs, &from).unwrap();
            let before = fs.files();
            fs.fail_after(failing, Errno::IO);
            let patch = LimitsPatch { cpu_quota: quota(12_345), ..to.clone() };
            if apply(&fs, &patch).is_err() {
                prop_assert_eq!(fs.files(), before);
            }
        }
    }
}
