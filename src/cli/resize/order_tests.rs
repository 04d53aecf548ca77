use model::resources::{Bytes, CpuPeriod, CpuSet, CpuShares, Micros};
use proptest::prelude::*;

use super::*;

fn size(millis: Option<u64>, shares: i64, mib: Option<u64>) -> LimitsPatch {
    LimitsPatch {
        cpu_quota: Some(millis.map_or(CpuQuota::Unlimited, |millis| CpuQuota::Micros(Micros(millis * 100)))),
        cpu_period: CpuPeriod::new(100_000).ok(),
        cpu_shares: CpuShares::new(shares).ok(),
        memory: Some(mib.map_or(MemoryLimit::Unlimited, |mib| MemoryLimit::Bytes(Bytes(mib << 20)))),
        ..LimitsPatch::default()
    }
}

fn from_to(now: LimitsPatch, to: LimitsPatch) -> LimitsChange {
    LimitsChange { now, to }
}

/// Returns owner and fields of each step, in order; `P` is the pod.
fn order(pod: &LimitsChange, containers: &[LimitsChange]) -> Vec<String> {
    let words = |step: &Step| {
        let owner = match step.owner {
            Owner::Pod => "P".to_owned(),
            Owner::Container(index) => index.to_string(),
        };
        let parts = [
            (step.to.memory.is_some(), "memory"),
            (step.to.cpu_quota.is_some(), "cpu"),
            (step.to.cpu_shares.is_some(), "shares"),
            (step.to.cpuset_cpus.is_some(), "cpus"),
        ];
        let parts: Vec<&str> = parts.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect();
        format!("{owner} {}", parts.join("+"))
    };
    steps(pod, containers).iter().map(words).collect()
}

#[test]
fn a_pod_that_grows_is_raised_before_its_containers() {
    let pod = from_to(size(Some(500), 512, Some(128)), size(Some(1000), 1024, Some(256)));
    let app = from_to(size(Some(500), 512, Some(128)), size(Some(1000), 1024, Some(256)));
    let expected = ["P memory", "0 memory", "P cpu+shares", "0 cpu+shares"];
    assert_eq!(order(&pod, &[app]), expected);
}

#[test]
fn a_pod_that_shrinks_is_lowered_after_its_containers() {
    let pod = from_to(size(Some(1000), 1024, Some(256)), size(Some(500), 512, Some(128)));
    let app = from_to(size(Some(1000), 1024, Some(256)), size(Some(500), 512, Some(128)));
    let expected = ["0 memory", "P memory", "0 cpu+shares", "P cpu+shares"];
    assert_eq!(order(&pod, &[app]), expected);
}

#[test]
fn containers_are_lowered_before_others_are_raised() {
    let up = from_to(size(Some(100), 100, Some(64)), size(Some(200), 200, Some(128)));
    let down = from_to(size(Some(200), 200, Some(128)), size(Some(100), 100, Some(64)));
    let expected = ["1 memory", "0 memory", "1 cpu+shares", "0 cpu+shares"];
    assert_eq!(order(&LimitsChange::default(), &[up, down]), expected);
}

#[test]
fn memory_and_cpu_are_ordered_independently() {
    let pod = from_to(size(Some(1000), 1024, Some(128)), size(Some(500), 1024, Some(256)));
    let app = from_to(size(Some(1000), 1024, Some(128)), size(Some(500), 1024, Some(256)));
    assert_eq!(order(&pod, &[app]), ["P memory", "0 memory", "0 cpu", "P cpu"]);
}

#[test]
fn the_request_decides_if_the_limit_stays_the_same() {
    let more = from_to(size(None, 100, None), size(None, 200, None));
    let less = from_to(size(None, 200, None), size(None, 100, None));
    assert_eq!(order(&LimitsChange::default(), &[more, less]), ["1 shares", "0 shares"]);
}

#[test]
fn no_limit_is_more_than_any_limit_and_is_restored() {
    let limit = from_to(size(None, 100, None), size(Some(100), 100, Some(64)));
    let free = from_to(size(Some(100), 100, Some(64)), size(None, 100, None));
    assert_eq!(order(&LimitsChange::default(), &[free, limit.clone()]), ["1 memory", "0 memory", "1 cpu", "0 cpu"]);
    let back = &steps(&LimitsChange::default(), &[limit])[0].back;
    assert_eq!(back.memory, Some(MemoryLimit::Unlimited));
}

#[test]
fn an_unchanged_limit_needs_no_step() {
    let same = from_to(size(Some(100), 100, Some(64)), size(Some(100), 100, Some(64)));
    assert_eq!(steps(&same, std::slice::from_ref(&same)), []);
    let set = LimitsPatch { cpuset_cpus: CpuSet::new("0").ok(), ..LimitsPatch::default() };
    let now = LimitsPatch { cpuset_cpus: CpuSet::new("0-1").ok(), ..LimitsPatch::default() };
    assert_eq!(order(&LimitsChange::default(), &[from_to(now, set)]), ["0 cpus"]);
}

fn sizes() -> impl Strategy<Value = LimitsPatch> {
    let maybe = |range: std::ops::Range<u64>| proptest::option::of(range);
    (maybe(1..40), 2_i64..50, maybe(1..40)).prop_map(|(cpu, shares, mib)| size(cpu.map(|cpu| cpu * 100), shares, mib))
}

proptest! {
    /// For any request: each change is made once, a rollback restores the old values, and no
    /// container ever has more memory than its pod if that holds before and after.
    #[test]
    fn all_changes_are_made_can_be_rolled_back_and_stay_within_the_pod(
        pod in (sizes(), sizes()),
        containers in proptest::collection::vec((sizes(), sizes()), 1..4),
    ) {
        let pod = from_to(pod.0, pod.1);
        let containers: Vec<LimitsChange> = containers.into_iter().map(|(now, to)| from_to(now, to)).collect();
        let steps = steps(&pod, &containers);
        let mut state: Vec<LimitsPatch> = [&pod].into_iter().chain(&containers).map(|one| one.now.clone()).collect();
        let place = |step: &Step| match step.owner { Owner::Pod => 0, Owner::Container(index) => index + 1 };
        let limit = |patch: &LimitsPatch| patch.memory.and_then(memory_bytes).unwrap_or(u64::MAX);
        let within = |state: &[LimitsPatch]| state[1..].iter().all(|one| limit(one) <= limit(&state[0]));
        let ends: Vec<LimitsPatch> = [&pod].into_iter().chain(&containers).map(|one| one.now.clone().merged(&one.to)).collect();
        let guarded = within(&state) && within(&ends);
        for step in &steps {
            let at = place(step);
            state[at] = state[at].clone().merged(&step.to);
            prop_assert!(!guarded || within(&state), "{state:?}");
        }
        prop_assert_eq!(&state, &ends);
        for step in steps.iter().rev() {
            let at = place(step);
            state[at] = state[at].clone().merged(&step.back);
        }
        let before: Vec<LimitsPatch> = [&pod].into_iter().chain(&containers).map(|one| one.now.clone()).collect();
        prop_assert_eq!(state, before);
    }
}
