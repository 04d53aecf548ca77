//! Updates of containers that are not running.

use std::time::Instant;

use cri_api::v1;
use tonic::Code;

use super::container::Container;
use super::resources::Shape;
use super::target::{Target, update};
use crate::support::harness::seconds;

const SHAPE: Shape = Shape::burstable((500, 1000), (64, 128));
const OTHER: Shape = Shape::burstable((750, 1500), (96, 192));

#[test]
fn a_resize_before_the_start_is_active_after_it() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut container = Container::create(&target, &pod, target.idle("main"), SHAPE.resources());
    container.try_update(OTHER.resources()).unwrap();
    container.try_update(v1::LinuxContainerResources { cpu_shares: 300, ..Default::default() }).unwrap();
    assert_eq!(target.client().status(&container.id).state(), v1::ContainerState::ContainerCreated);
    container.start();
    container.update(SHAPE.resources());
}

/// Both responses let the kubelet continue, if they are immediate.
fn try_resize(target: &Target, id: &str) -> Option<Code> {
    let begin = Instant::now();
    let answer = update(target.client(), id, OTHER.resources());
    assert!(begin.elapsed() < seconds(5), "{:?}", begin.elapsed());
    let code = answer.err().map(|refusal| refusal.code());
    assert!(matches!(code, None | Some(Code::NotFound)), "{code:?}");
    code
}

#[test]
fn an_update_of_an_exited_container_succeeds_or_is_not_found_and_starts_nothing() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let by_itself = Container::create(&target, &pod, target.script("by-itself", "exit 3"), SHAPE.resources());
    target.client().start(&by_itself.id).unwrap();
    target.client().wait_exited(&by_itself.id);
    let stopped = Container::run(&target, &pod, "stopped", &SHAPE);
    target.client().stop(&stopped.id, 10).unwrap();
    for container in [by_itself, stopped] {
        let look = || v1::ContainerStatus { resources: None, ..target.client().status(&container.id) };
        let before = look();
        assert_eq!(before.state(), v1::ContainerState::ContainerExited);
        try_resize(&target, &container.id);
        assert_eq!(look(), before);
    }
}

#[test]
fn an_update_in_a_stopped_pod_succeeds_or_is_not_found() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let container = Container::run(&target, &pod, "main", &SHAPE);
    target.client().stop_pod(&pod.id).unwrap();
    try_resize(&target, &container.id);
}

#[test]
fn a_container_that_does_not_exist_is_not_found() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let container = Container::run(&target, &pod, "main", &SHAPE);
    target.client().stop(&container.id, 10).unwrap();
    target.client().remove(&container.id).unwrap();
    let never = "0123456789abcdef".repeat(4);
    for id in [container.id.as_str(), never.as_str(), pod.id.as_str()] {
        let refusal = update(target.client(), id, OTHER.resources()).unwrap_err();
        assert_eq!(refusal.code(), Code::NotFound, "{refusal:?}");
    }
}
