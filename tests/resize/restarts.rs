//! A runtime that is restarted between and during updates.

use std::sync::atomic::{AtomicBool, Ordering};

use super::container::Container;
use super::resources::Shape;
use super::target::{Target, update};

const SHAPE: Shape = Shape::burstable((500, 1000), (64, 128));
const OTHER: Shape = Shape::burstable((750, 1500), (96, 192));

#[test]
fn a_resize_is_reported_and_active_after_a_restart() {
    let target = Target::alone();
    let pod = target.run_pod("pod");
    let mut changed = Container::run(&target, &pod, "changed", &SHAPE);
    let untouched = Container::run(&target, &pod, "untouched", &SHAPE);
    let mut unlimited = Container::run(&target, &pod, "unlimited", &Shape::default());
    let mut created = Container::create(&target, &pod, target.idle("created"), SHAPE.resources());
    changed.update(OTHER.resources());
    unlimited.update(Shape::burstable((35, 0), (64, 0)).resources());
    created.try_update(OTHER.resources()).unwrap();
    target.restart();
    [&changed, &untouched, &unlimited].into_iter().for_each(Container::check);
    created.start();
    // A kubelet that did not receive the response repeats the request.
    changed.update(OTHER.resources());
    changed.update(SHAPE.resources());
    unlimited.update(OTHER.resources());
    target.restart();
    [&changed, &untouched, &unlimited, &created].into_iter().for_each(Container::check);
}

#[test]
fn an_interrupted_update_can_be_repeated() {
    let target = Target::alone();
    let pod = target.run_pod("pod");
    let mut container = Container::run(&target, &pod, "main", &SHAPE);
    for _ in 0..3 {
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let client = target.connect();
                for shape in [OTHER, SHAPE].iter().cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    // Refused, interrupted or applied: the kubelet has no response.
                    update(&client, &container.id, shape.resources()).ok();
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            target.restart();
            done.store(true, Ordering::Relaxed);
        });
        container.update(OTHER.resources());
        container.update(SHAPE.resources());
    }
}
