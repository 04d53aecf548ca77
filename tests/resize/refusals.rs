//! Requests that must be refused change nothing.

use cri_api::v1;
use tonic::Code;

use super::container::Container;
use super::resources::{Shape, in_words, memory_limit};
use super::target::Target;

const SHAPE: Shape = Shape::burstable((500, 1000), (96, 128));

fn patch(change: impl FnOnce(&mut v1::LinuxContainerResources)) -> v1::LinuxContainerResources {
    let mut patch = v1::LinuxContainerResources::default();
    change(&mut patch);
    patch
}

/// Values that no kernel accepts, each beside valid ones.
fn bad() -> Vec<v1::LinuxContainerResources> {
    let fine = || v1::LinuxContainerResources { cpu_shares: 700, ..memory_limit(160 << 20) };
    vec![
        v1::LinuxContainerResources { cpu_quota: 5, ..fine() },
        v1::LinuxContainerResources { cpu_period: 5, ..fine() },
        v1::LinuxContainerResources { cpu_period: 2_000_000, ..fine() },
        v1::LinuxContainerResources { cpuset_cpus: "0-".into(), ..fine() },
        v1::LinuxContainerResources { cpuset_cpus: "two".into(), ..fine() },
        v1::LinuxContainerResources { memory_limit_in_bytes: -7, ..fine() },
        v1::LinuxContainerResources { cpu_shares: -2, ..fine() },
    ]
}

#[test]
fn an_invalid_value_is_refused_and_nothing_is_changed() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut container = Container::run(&target, &pod, "main", &SHAPE);
    for patch in bad() {
        container.refuse(patch);
    }
    container.update(Shape::burstable((750, 1500), (96, 160)).resources());
}

#[test]
fn cpus_that_do_not_exist_are_refused_and_nothing_is_changed() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut container = Container::run(&target, &pod, "main", &SHAPE);
    let asked = patch(|p| (p.cpuset_cpus, p.cpu_shares, p.cpu_quota) = ("1000".into(), 700, 70_000));
    container.refuse(asked);
    container.update(Shape::burstable((750, 1500), (96, 160)).resources());
}

#[test]
fn a_bad_value_is_an_invalid_argument() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut container = Container::run(&target, &pod, "main", &SHAPE);
    let mut wrong = Vec::new();
    for patch in bad() {
        let asked = in_words(&patch);
        match container.try_update(patch) {
            Err(refusal) if refusal.code() == Code::InvalidArgument => {}
            Err(refusal) => wrong.push(format!("{asked}: {:?}: {}", refusal.code(), refusal.message().trim())),
            Ok(()) => wrong.push(format!("{asked}: granted")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_request_for_windows_is_an_invalid_argument() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let container = Container::run(&target, &pod, "main", &SHAPE);
    let request = v1::UpdateContainerResourcesRequest {
        container_id: container.id.clone(),
        windows: Some(v1::WindowsContainerResources { cpu_shares: 100, ..Default::default() }),
        ..Default::default()
    };
    let answer = target.client().call(|mut c| async move { c.update_container_resources(request).await });
    let refusal = answer.expect_err("there is nothing in it for this machine");
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    container.check();
}
