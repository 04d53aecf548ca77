//! The limits in a status, as the kubelet reads and converts them.

use cri_api::v1;

use super::container::Container;
use super::resources::{Shape, Span};
use super::target::Target;
use crate::support::kernel_state;

/// The CPU request and limit and the memory limit that the kubelet puts into the pod's status.
fn read_by_kubelet(told: &v1::LinuxContainerResources) -> (i64, i64, i64) {
    let request = if told.cpu_shares >= 2 { (told.cpu_shares * 1000 + 1023) / 1024 } else { 0 };
    let limit = if told.cpu_period > 0 { told.cpu_quota * 1000 / told.cpu_period } else { 0 };
    (request, limit.max(0), told.memory_limit_in_bytes.max(0))
}

/// The kubelet uses its allocated value if both are below its minimum.
fn same(found: i64, allocated: i64, tiny: i64) -> bool {
    found == allocated || (found <= tiny && allocated <= tiny)
}

#[test]
fn every_amount_of_cpu_is_reported_as_requested() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let usual = Shape::burstable((500, 1000), (64, 128));
    let mut container = Container::run(&target, &pod, "main", &usual);
    let mut weights = Vec::new();
    for cpu in [1, 2, 3, 5, 10, 12, 15, 25, 35, 37, 100, 102, 250, 333, 500, 999, 1000, 1002, 1999] {
        let shape = Shape { cpu: Span { request: cpu, limit: cpu + 1 }, ..usual };
        container.update_seen_from_outside(shape.resources());
        let status = target.client().status(&container.id);
        if let Some(told) = status.resources.and_then(|resources| resources.linux) {
            let (request, limit, memory) = read_by_kubelet(&told);
            let right = same(request, cpu, 2) && same(limit, cpu + 1, 10) && memory == usual.memory.limit;
            assert!(right, "{cpu}m of {}m: the pod's status would have {request}m of {limit}m, {memory}", cpu + 1);
        }
        let file = if kernel_state::is_v2() { "cpu.weight" } else { "cpu.shares" };
        weights.push(container.file("cpu", file).parse::<i64>().unwrap());
    }
    assert!(weights.is_sorted() && weights[0] > 0, "more CPU must not give a lower weight: {weights:?}");
    container.update(usual.resources());
}

#[test]
fn unlimited_is_reported_as_unset_before_and_after_a_change() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    // The views must have memory 0, a quota of 0 or -1, and shares of 2 where nothing was requested.
    let mut container = Container::run(&target, &pod, "main", &Shape::default());
    container.update(Shape::burstable((100, 0), (64, 0)).resources());
    container.update(Shape::burstable((100, 1000), (64, 0)).resources());
    container.update(v1::LinuxContainerResources { cpu_quota: -1, ..Default::default() });
}

#[test]
fn a_memory_limit_that_is_not_a_multiple_of_the_page_size_is_reported_as_requested() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let shape = |bytes| {
        let memory = Span { request: bytes, limit: bytes };
        Shape { memory, ..Shape::guaranteed(1000, 0) }
    };
    let mut container = Container::run(&target, &pod, "main", &shape(100_000_001));
    container.update(shape(128_000_000).resources());
    container.update(shape(123_456_789).resources());
}

#[test]
fn another_caller_reads_the_same_limits_immediately() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut container = Container::run(&target, &pod, "main", &Shape::guaranteed(500, 128));
    let other = target.connect();
    for round in 0..20 {
        let shape = Shape::guaranteed(500 + round * 10, 128 + round);
        container.try_update(shape.resources()).unwrap();
        let status = other.status(&container.id);
        let wrong = super::views::in_status(&status, container.requested(), target.may_report_nothing());
        assert!(wrong.is_empty(), "round {round}: {wrong:?}");
    }
    container.check();
}

#[test]
fn the_rest_of_the_status_is_as_before() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut config = target.idle("main");
    config.labels.insert("label".into(), "kept".into());
    config.annotations.insert("restarts".into(), "3".into());
    let mut container = Container::run_config(&target, &pod, config, Shape::guaranteed(500, 128).resources());
    let look = || v1::ContainerStatus { resources: None, ..target.client().status(&container.id) };
    let before = look();
    container.try_update(Shape::guaranteed(1000, 160).resources()).unwrap();
    let look = || v1::ContainerStatus { resources: None, ..target.client().status(&container.id) };
    assert_eq!(look(), before);
    container.check();
}

#[test]
fn a_container_sees_the_cgroup_version_that_limits_it_and_no_other() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let container = Container::run(&target, &pod, "main", &Shape::guaranteed(500, 128));
    // The kubelet's tests select the files that they read in this way.
    let seen = target.client().exec_script(&container.id, "mount -t cgroup2 | grep -c /sys/fs/cgroup || true");
    assert_eq!(seen, if kernel_state::is_v2() { "1\n" } else { "0\n" });
}
