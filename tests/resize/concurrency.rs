//! Concurrent updates of many containers and of one, while clients read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cri_api::v1;

use super::container::Container;
use super::resources::{Limits, Shape};
use super::target::{Target, update};
use super::views;
use crate::support::client::Client;
use crate::support::harness::{seconds, times};

/// The sizes of the container with this number, different for each.
fn shape(number: usize, round: usize) -> Shape {
    let (number, round) = (i64::try_from(number).unwrap(), i64::try_from(round).unwrap());
    Shape::burstable((100 + number, 1000 + 10 * round), (64, 96 + number + round % 3))
}

fn resize(client: &Client, id: &str, number: usize, rounds: usize) -> Limits {
    let mut last = Limits::default();
    for round in 0..rounds {
        let asked = shape(number, round).resources();
        update(client, id, asked.clone()).unwrap_or_else(|e| panic!("round {round} of {number}: {e:?}"));
        last = Limits::of(&asked);
    }
    last
}

/// Requests lists and states until `done`; returns the longest time of a response.
fn read_until(client: &Client, ids: &[String], done: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while !done.load(Ordering::Relaxed) {
        for id in ids {
            let begin = Instant::now();
            let status = client.status(id);
            assert_eq!(status.state(), v1::ContainerState::ContainerRunning);
            longest = longest.max(begin.elapsed());
        }
        let begin = Instant::now();
        let listed = client.containers();
        assert!(ids.iter().all(|id| listed.iter().any(|container| container.id == *id)));
        longest = longest.max(begin.elapsed());
    }
    longest
}

#[test]
fn containers_resized_at_once_have_the_last_requested_limits_while_others_read() {
    let target = Target::get();
    let (count, rounds) = (times(12, 4), times(25, 5));
    let pods: Vec<_> = (0..count / 2).map(|number| target.run_pod(&format!("pod-{number}"))).collect();
    let mut containers: Vec<_> = (0..count)
        .map(|number| Container::run(&target, &pods[number / 2], &format!("c{number}"), &shape(number, 0)))
        .collect();
    let ids: Vec<String> = containers.iter().map(|container| container.id.clone()).collect();
    let done = AtomicBool::new(false);
    let (last, longest) = std::thread::scope(|threads| {
        let looking = threads.spawn(|| read_until(&target.connect(), &ids, &done));
        let resizing: Vec<_> = ids
            .iter()
            .enumerate()
            .map(|(number, id)| {
                threads.spawn({
                    let target = &target;
                    move || resize(&target.connect(), id, number, rounds)
                })
            })
            .collect();
        let last: Vec<_> = resizing.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        (last, looking.join())
    });
    for (container, last) in containers.iter_mut().zip(last) {
        container.expect(last.unwrap());
        container.check();
    }
    let longest = longest.unwrap();
    assert!(longest < seconds(5), "a list or status took {longest:?}");
}

#[test]
fn two_concurrent_resizes_of_one_container_end_with_the_limits_of_one_of_them() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let (small, large) = (Shape::burstable((200, 800), (64, 96)), Shape::burstable((700, 1400), (64, 192)));
    let mut container = Container::run(&target, &pod, "main", &small);
    std::thread::scope(|threads| {
        for shape in [small, large] {
            let (target, id) = (&target, &container.id);
            threads.spawn(move || {
                let client = target.connect();
                for _ in 0..times(30, 5) {
                    update(&client, id, shape.resources()).unwrap();
                }
            });
        }
    });
    let [small, large] = [small, large].map(|shape| Limits::of(&shape.resources()));
    let is_small = views::in_kernel(&container.cgroup, &small).is_empty();
    // Compared with the other request, so that a mixture is found.
    container.expect(if is_small { small } else { large });
    container.check();
}

#[test]
fn a_container_can_be_stopped_while_it_is_resized() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let container = Container::run(&target, &pod, "main", &shape(0, 0));
    let neighbour = Container::run(&target, &pod, "neighbour", &shape(1, 0));
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let client = target.connect();
            for round in (0..100).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                // The result depends on the order of the requests.
                update(&client, &container.id, shape(0, round).resources()).ok();
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        let stopped = target.client().stop(&container.id, 10).and_then(|()| target.client().remove(&container.id));
        done.store(true, Ordering::Relaxed);
        stopped.unwrap();
    });
    assert_eq!(target.client().try_status(&container.id).unwrap_err().code(), tonic::Code::NotFound);
    neighbour.check();
}
