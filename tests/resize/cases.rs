//! The cases of KEP-1287: shapes of pods, and every direction in which they change.

use super::container::Container;
use super::kubelet::KubeletPod;
use super::resources::Shape;
use super::target::Target;

const fn burstable(cpu: (i64, i64), memory: (i64, i64)) -> Shape {
    Shape::burstable(cpu, memory)
}

/// Resizes a pod to each of `shapes` in turn, and back to the first.
fn there_and_back(begin: &[Shape], shapes: &[&[Shape]]) {
    let target = Target::get();
    let mut pod = KubeletPod::run(&target, "pod", begin);
    for shape in shapes {
        pod.resize(shape);
        pod.resize(begin);
    }
}

fn one(begin: Shape, shapes: &[Shape]) {
    let shapes: Vec<&[Shape]> = shapes.iter().map(std::slice::from_ref).collect();
    there_and_back(&[begin], &shapes);
}

#[test]
fn a_guaranteed_pod_grows_and_shrinks_in_cpu_and_memory() {
    one(
        Shape::guaranteed(1000, 128),
        &[
            Shape::guaranteed(1500, 128),
            Shape::guaranteed(500, 128),
            Shape::guaranteed(1000, 192),
            Shape::guaranteed(1000, 96),
            Shape::guaranteed(1500, 192),
            Shape::guaranteed(500, 96),
        ],
    );
}

#[test]
fn a_guaranteed_pod_grows_in_one_resource_and_shrinks_in_the_other() {
    one(Shape::guaranteed(1000, 128), &[Shape::guaranteed(1500, 96), Shape::guaranteed(500, 192)]);
}

#[test]
fn a_guaranteed_pod_of_three_grows_and_shrinks_at_once() {
    let begin = [Shape::guaranteed(1000, 128), Shape::guaranteed(800, 160), Shape::guaranteed(600, 96)];
    there_and_back(
        &begin,
        &[
            // More CPU for the first and the third, more memory for the second; less of the other
            // resource for each.
            &[Shape::guaranteed(1200, 96), Shape::guaranteed(500, 224), Shape::guaranteed(700, 80)],
            // The sum of the pod is unchanged.
            &[Shape::guaranteed(800, 160), Shape::guaranteed(1000, 128), Shape::guaranteed(600, 96)],
            // Only one resource.
            &[begin[0], begin[1], Shape::guaranteed(900, 128)],
        ],
    );
}

const BURSTABLE: Shape = burstable((500, 1000), (96, 160));

#[test]
fn a_burstable_pod_changes_its_cpu_request_or_limit_alone() {
    one(
        BURSTABLE,
        &[
            burstable((250, 1000), (96, 160)),
            burstable((750, 1000), (96, 160)),
            burstable((500, 800), (96, 160)),
            burstable((500, 1500), (96, 160)),
        ],
    );
}

#[test]
fn a_burstable_pod_changes_its_memory_request_or_limit_alone() {
    one(
        BURSTABLE,
        &[
            burstable((500, 1000), (64, 160)),
            burstable((500, 1000), (128, 160)),
            burstable((500, 1000), (96, 128)),
            burstable((500, 1000), (96, 224)),
        ],
    );
}

#[test]
fn a_burstable_pod_moves_request_and_limit_of_cpu_together_and_apart() {
    one(
        BURSTABLE,
        &[
            burstable((250, 800), (96, 160)),
            burstable((750, 1500), (96, 160)),
            burstable((250, 1500), (96, 160)),
            burstable((750, 800), (96, 160)),
        ],
    );
}

#[test]
fn a_burstable_pod_moves_request_and_limit_of_memory_together_and_apart() {
    one(
        BURSTABLE,
        &[
            burstable((500, 1000), (64, 128)),
            burstable((500, 1000), (128, 224)),
            burstable((500, 1000), (64, 224)),
            burstable((500, 1000), (112, 128)),
        ],
    );
}

#[test]
fn a_burstable_pod_changes_cpu_and_memory_in_opposite_directions() {
    one(
        BURSTABLE,
        &[
            burstable((250, 1000), (96, 224)),
            burstable((750, 1000), (96, 128)),
            burstable((500, 800), (128, 160)),
            burstable((500, 1500), (64, 160)),
            burstable((750, 1500), (64, 128)),
            burstable((250, 800), (128, 224)),
        ],
    );
}

#[test]
fn a_pod_with_requests_only_changes_them_and_stays_unlimited() {
    one(
        burstable((500, 0), (96, 0)),
        &[
            burstable((250, 0), (96, 0)),
            burstable((750, 0), (96, 0)),
            burstable((500, 0), (64, 0)),
            burstable((500, 0), (128, 0)),
            burstable((250, 0), (128, 0)),
        ],
    );
}

#[test]
fn a_pod_with_limits_only_has_requests_of_the_same_size() {
    // As the API server sets it, and as another client may send it.
    one(burstable((0, 1000), (0, 128)), &[burstable((0, 1500), (0, 128)), burstable((0, 500), (0, 192))]);
}

#[test]
fn a_pod_with_one_resource_only_changes_that_one() {
    one(burstable((500, 1000), (0, 0)), &[burstable((250, 800), (0, 0)), burstable((750, 1500), (0, 0))]);
    one(burstable((0, 0), (96, 160)), &[burstable((0, 0), (64, 128)), burstable((0, 0), (128, 224))]);
}

#[test]
fn a_burstable_pod_of_three_has_a_net_gain_and_a_net_loss() {
    there_and_back(
        &[burstable((500, 1000), (64, 128)), burstable((400, 800), (96, 160)), burstable((300, 900), (64, 96))],
        &[
            &[burstable((700, 1400), (96, 224)), burstable((300, 600), (64, 128)), burstable((400, 900), (64, 112))],
            &[burstable((400, 700), (64, 96)), burstable((500, 1000), (128, 192)), burstable((200, 500), (48, 80))],
        ],
    );
}

/// Only in one direction: the API does not permit the removal of a limit.
#[test]
fn limits_can_be_added_to_a_container_that_has_none() {
    let target = Target::get();
    let mut pod = KubeletPod::run(&target, "pod", &[burstable((500, 0), (96, 0))]);
    pod.resize(&[burstable((500, 1000), (96, 0))]);
    pod.resize(&[burstable((500, 1000), (96, 160))]);
    pod.resize(&[burstable((250, 1500), (128, 224))]);
    let begin = [burstable((500, 0), (96, 0)), burstable((400, 800), (0, 0)), Shape::guaranteed(300, 96)];
    let mut pod = KubeletPod::run(&target, "three", &begin);
    // The pod has limits only if all containers have.
    pod.resize(&[burstable((500, 1000), (96, 160)), begin[1], begin[2]]);
    pod.resize(&[burstable((500, 1000), (96, 160)), burstable((400, 800), (96, 128)), begin[2]]);
}

#[test]
fn a_best_effort_container_can_become_burstable() {
    let target = Target::get();
    let mut pod = KubeletPod::run(&target, "pod", &[Shape::default()]);
    pod.resize(&[burstable((500, 0), (0, 0))]);
    pod.resize(&[burstable((500, 1000), (64, 128))]);
}

#[test]
fn a_repeated_request_succeeds_and_changes_nothing() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut container = Container::run(&target, &pod, "main", &BURSTABLE);
    for shape in [BURSTABLE, burstable((750, 1500), (128, 224)), BURSTABLE] {
        for _ in 0..3 {
            container.update(shape.resources());
        }
    }
}

#[test]
fn after_many_changes_the_last_limits_are_active() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut container = Container::run(&target, &pod, "main", &BURSTABLE);
    for round in 0..10 {
        for at in 0..10 {
            let shape = burstable((100 + 10 * round, 1000 + 10 * at), (64, 128 + at));
            container.try_update(shape.resources()).unwrap();
        }
        container.check();
    }
}
