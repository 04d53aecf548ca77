//! Effective limits of a pod and a container below it, on the fake and on the real kernel.

use super::memory_load::hold;
use super::*;
use crate::effective::{Level, LevelKind, LevelReadings, effective_limits, read_files};

/// Makes a test of each function for two fakes, and for a cgroup of the kernel and one below it.
macro_rules! on_pod_and_container {
    ($($name:ident)*) => {
        mod fake_v1 { $(#[test] fn $name() { super::$name(&super::FakeCgroup::v1(), &super::FakeCgroup::v1()); })* }
        mod fake_v2 { $(#[test] fn $name() { super::$name(&super::FakeCgroup::v2(), &super::FakeCgroup::v2()); })* }
        mod kernel {
            $(
                #[test]
                #[ignore = "needs root"]
                fn $name() {
                    let pod = super::Throwaway::new();
                    super::$name(&pod.group, &super::container(&pod));
                }
            )*
        }
    };
}

on_pod_and_container! {
    the_pods_lower_memory_limit_is_effective
    the_containers_lower_limits_are_effective
    a_cpuset_is_set_by_the_highest_level_that_has_it
}

fn container(pod: &Throwaway) -> crate::Cgroup {
    let container = pod.group.child("c1").unwrap();
    assert!(!container.create().unwrap().is_empty());
    container
}

fn level(kind: LevelKind) -> Level {
    Level { kind, cgroup: "/x".to_owned() }
}

fn effective(pod: &impl CgroupFs, container: &impl CgroupFs) -> crate::EffectiveLimits {
    let path = model::CgroupPath::new("/x").unwrap();
    let read = |kind, reading| (level(kind), reading);
    effective_limits(&[
        read(LevelKind::Container, read_files(container, &path).unwrap()),
        read(LevelKind::Pod, read_files(pod, &path).unwrap()),
    ])
}

fn the_pods_lower_memory_limit_is_effective(pod: &impl CgroupFs, container: &impl CgroupFs) {
    apply(pod, &both(40)).unwrap();
    apply(container, &both(500)).unwrap();
    let found = effective(pod, container).memory.unwrap();
    assert_eq!((found.limit, found.set_by, found.least_free), (40 * MIB, level(LevelKind::Pod), None));
    let free = found.free.unwrap();
    assert!((39 * MIB..=40 * MIB).contains(&free), "{free}");
}

fn the_containers_lower_limits_are_effective(pod: &impl CgroupFs, container: &impl CgroupFs) {
    let free = effective(pod, container);
    assert_eq!((free.cpu, free.memory, free.last_memory_hit), (None, None, None));
    apply(pod, &LimitsPatch { cpu_quota: quota(50_000), ..both(128) }).unwrap();
    let period = Some(CpuPeriod::new(50_000).unwrap());
    apply(container, &LimitsPatch { cpu_quota: quota(10_000), cpu_period: period, ..both(64) }).unwrap();
    container.write(&Knob::PIDS_MAX, "10").unwrap();
    pod.write(&Knob::PIDS_MAX, "20").unwrap();
    let found = effective(pod, container);
    for (limit, amount) in [(found.cpu, 200_000_000), (found.memory, 64 * MIB), (found.pids.clone(), 10)] {
        let limit = limit.unwrap();
        assert_eq!((limit.limit, limit.set_by), (amount, level(LevelKind::Container)));
    }
    assert_eq!(found.pids.unwrap().free, Some(10));
}

fn a_cpuset_is_set_by_the_highest_level_that_has_it(pod: &impl CgroupFs, container: &impl CgroupFs) {
    let one = LimitsPatch { cpuset_cpus: Some(CpuSet::new("0").unwrap()), ..LimitsPatch::default() };
    apply(container, &one).unwrap();
    let found = effective(pod, container).cpuset.unwrap();
    assert_eq!((found.cpus.as_str(), found.set_by), ("0", level(LevelKind::Container)));
    apply(pod, &one).unwrap();
    assert_eq!(effective(pod, container).cpuset.unwrap().set_by, level(LevelKind::Pod));
}

#[test]
#[ignore = "needs root"]
fn all_levels_to_the_root_are_read() {
    let pod = Throwaway::new();
    let container = container(&pod);
    apply(&pod.group, &both(40)).unwrap();
    let mut readings = LevelReadings::default();
    let found = readings.effective(&container, pod.group.path()).unwrap();
    let memory = found.memory.unwrap();
    assert_eq!((memory.limit, memory.set_by.kind), (40 * MIB, LevelKind::Pod));
    assert_eq!(memory.set_by.cgroup, pod.group.path().as_str());
    let cpuset = found.cpuset.unwrap();
    assert_eq!((cpuset.set_by.kind, cpuset.set_by.cgroup.as_str()), (LevelKind::Root, "/"));
    assert_eq!(readings.above(&container, pod.group.path()).unwrap().memory.unwrap().limit, 40 * MIB);
    assert_eq!(readings.above(&pod.group, pod.group.path()).unwrap().memory, None);
    apply(&pod.group, &both(80)).unwrap();
    let again =
        |readings: &mut LevelReadings| readings.effective(&container, pod.group.path()).unwrap().memory.unwrap();
    assert_eq!(again(&mut readings).limit, 40 * MIB, "each level is read once");
    assert_eq!(again(&mut LevelReadings::default()).limit, 80 * MIB);
}

#[test]
#[ignore = "needs root"]
fn the_level_whose_memory_limit_was_hit_is_reported() {
    let pod = Throwaway::new();
    let container = container(&pod);
    // As the kubelet limits a pod. Where memory and swap together are limited, Linux 6.18 counts no hits on v1.
    apply(&pod.group, &LimitsPatch { memory: memory(16), ..LimitsPatch::default() }).unwrap();
    apply(&container, &LimitsPatch { memory: memory(64), ..LimitsPatch::default() }).unwrap();
    let status = crate::tests::shell_in(&container, "exec tail /dev/zero").status().unwrap();
    assert!(!status.success());
    let found = LevelReadings::default().effective(&container, pod.group.path()).unwrap();
    let last = found.last_memory_hit.unwrap();
    assert!(last.at.kind == LevelKind::Pod && last.hits > 0 && last.seen.is_none(), "{last:?}");
}

#[test]
#[ignore = "needs root"]
fn memory_left_is_the_least_of_all_levels() {
    let pod = Throwaway::new();
    let (first, second) = (container(&pod), pod.group.child("c2").unwrap());
    assert!(!second.create().unwrap().is_empty());
    apply(&pod.group, &both(128)).unwrap();
    let _held = hold(&second, 20);
    let mut scratch = crate::ReadBuffer::default();
    let mut left =
        |group: &crate::Cgroup, own| crate::MemoryAbove::default().left(group, own, |_| None, &mut scratch).unwrap();
    let rest = left(&first, None).unwrap();
    assert!((64 * MIB..108 * MIB).contains(&rest), "{rest} of 128 MiB, of which at least 20 are used");
    assert_eq!(left(&first, Some(5 * MIB)), Some(5 * MIB), "its own limit leaves less");
    assert!(left(&first, Some(500 * MIB)).unwrap() < 108 * MIB);
    assert_eq!(left(&pod.group, None), None, "nothing above has a limit");
}
