//! The forecast of a shrink, and whether the kernel agrees.

use std::time::Duration;

use super::memory_load::{hold, read_files_into};
use super::*;
use crate::forecast::{ProbeEnd, ProbeError, ProbeLimits, forecast, probe};

#[test]
fn the_smallest_limit_is_the_usage_without_page_cache() {
    for fs in [FakeCgroup::v1(), FakeCgroup::v2()] {
        let fs = fs.using(48 * MIB).caching(40 * MIB);
        apply(&fs, &both(128)).unwrap();
        let found = forecast(&fs).unwrap();
        assert_eq!((found.usage, found.limit), (88 * MIB, Some(128 * MIB)));
        assert_eq!((found.anonymous, found.file, found.reclaimable), (48 * MIB, 40 * MIB, 40 * MIB));
        assert_eq!((found.unevictable, found.kernel, found.smallest_limit), (0, 0, 48 * MIB));
        let refused = apply(&fs, &both(47)).unwrap_err();
        let ApplyError::BelowUsage { forecast, .. } = refused else { panic!("{refused:?}") };
        assert_eq!(forecast.unwrap().smallest_limit, 48 * MIB);
        apply(&fs, &both(48)).unwrap();
    }
}

#[test]
fn a_forecast_changes_nothing() {
    for fs in [FakeCgroup::v1(), FakeCgroup::v2()] {
        let fs = fs.using(48 * MIB).caching(40 * MIB);
        let (files, log) = (fs.files(), fs.log());
        assert_eq!(forecast(&fs).unwrap(), forecast(&fs).unwrap());
        assert_eq!((fs.files(), fs.log()), (files, log));
        fs.vanish();
        assert_eq!(forecast(&fs).unwrap_err().kind(), model::ErrorKind::NotFound);
    }
}

const QUICK: ProbeLimits = ProbeLimits { within: Duration::from_secs(30), pause: Duration::ZERO };

#[test]
fn a_probe_reclaims_page_cache_and_nothing_else() {
    let fs = FakeCgroup::v2().using(48 * MIB).caching(5 * MIB);
    let found = probe(&fs, QUICK).unwrap();
    assert_eq!((found.reclaimed, found.usage, found.refaulted), (5 * MIB, 48 * MIB, 0));
    assert_eq!(found.ended, ProbeEnd::AllReclaimed);
    let none = ProbeLimits { within: Duration::ZERO, ..QUICK };
    assert_eq!(probe(&FakeCgroup::v2().caching(5 * MIB), none).unwrap().ended, ProbeEnd::Deadline);
    assert!(matches!(probe(&FakeCgroup::v1(), QUICK), Err(ProbeError::Unsupported)));
}

#[test]
#[ignore = "needs root"]
fn a_limit_at_the_forecast_is_accepted_by_the_kernel_and_one_far_below_is_refused() {
    let throwaway = Throwaway::new();
    let group = &throwaway.group;
    apply(group, &both(256)).unwrap();
    let _held = hold(group, 24);
    read_files_into(group, 24);
    let before = forecast(group).unwrap();
    assert!(before.anonymous >= 24 * MIB && before.reclaimable >= 20 * MIB, "{before:?}");
    assert!(before.smallest_limit >= 24 * MIB && before.smallest_limit < 40 * MIB, "{before:?}");
    let bytes = |bytes: u64| {
        let limit = Some(MemoryLimit::Bytes(Bytes(bytes)));
        LimitsPatch { memory: limit, memory_swap: limit, ..LimitsPatch::default() }
    };
    let refused = apply(group, &bytes(before.anonymous - 8 * MIB)).unwrap_err();
    let ApplyError::BelowUsage { forecast: after, .. } = refused else { panic!("{refused:?}") };
    let after = after.unwrap();
    assert!(after.smallest_limit <= before.smallest_limit + MIB, "{before:?} {after:?}");
    apply(group, &bytes(before.smallest_limit + MIB)).unwrap();
}

#[test]
#[ignore = "needs root"]
fn a_probe_of_the_kernel_reclaims_page_cache_and_kills_nothing() {
    let throwaway = Throwaway::new();
    let group = &throwaway.group;
    let _held = hold(group, 24);
    read_files_into(group, 24);
    let before = forecast(group).unwrap();
    let outcome = probe(group, ProbeLimits { within: Duration::from_secs(60), ..ProbeLimits::default() });
    if group.version() == Version::V1 {
        assert!(matches!(outcome, Err(ProbeError::Unsupported)), "{outcome:?}");
        return;
    }
    let found = outcome.unwrap();
    assert!(found.reclaimed >= 12 * MIB && found.usage < before.usage, "{before:?} {found:?}");
    assert!(forecast(group).unwrap().anonymous >= 24 * MIB);
    assert_eq!(group.oom_kills(), Some(0));
}
