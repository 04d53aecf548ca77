//! Resources of a daemon under the polling of a kubelet.
//!
//! The short form is a normal test. `hack/dev soak` runs it longer and with more pods, and prints
//! the resources: `CRISP_SOAK_SECONDS` and `CRISP_SOAK_PODS`.

use std::time::{Duration, Instant};

use cri_api::v1;

use crate::support::client::{Client, Pod, container};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, slow, times};
use crate::support::kernel_state;

/// The duration, the number of pods, and the polling interval.
struct Plan {
    pods: usize,
    rounds: u32,
    period: Duration,
    /// Rounds between two samples.
    every: u32,
}

impl Plan {
    fn get() -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u32>().unwrap());
        match number("CRISP_SOAK_SECONDS") {
            Some(seconds) => Self {
                pods: usize::try_from(number("CRISP_SOAK_PODS").unwrap_or(100)).unwrap(),
                rounds: seconds.max(20),
                period: Duration::from_secs(1),
                every: (seconds / 20).max(1),
            },
            None => {
                Self { pods: times(15, 4), rounds: 60, period: Duration::from_millis(100) * slow().min(5), every: 3 }
            }
        }
    }
}

/// Resources of the daemon at one time.
#[derive(Debug, Clone, Copy)]
struct Reading {
    anonymous_kib: u64,
    fds: usize,
    threads: usize,
}

/// Sends the requests of a kubelet: a relist each second, the statuses of the pods in turn, other
/// requests from time to time. `stats` are read each second, more often than by any kubelet.
fn look(client: &Client, pods: &[(Pod, String)], round: u32) {
    assert_eq!(client.pods().len(), pods.len());
    assert_eq!(client.containers().len(), pods.len());
    let stats = v1::ListContainerStatsRequest { filter: None };
    let stats = client.call(|mut c| async move { c.list_container_stats(stats).await }).unwrap().stats;
    assert_eq!(stats.len(), pods.len());
    let stats = v1::ListPodSandboxStatsRequest { filter: None };
    let stats = client.call(|mut c| async move { c.list_pod_sandbox_stats(stats).await }).unwrap().stats;
    assert_eq!(stats.len(), pods.len());
    let turn = usize::try_from(round).unwrap() % 10;
    for (pod, container) in pods.iter().skip(turn).step_by(10) {
        assert_eq!(client.pod_status(&pod.id).state(), v1::PodSandboxState::SandboxReady);
        assert_eq!(client.status(container).state(), v1::ContainerState::ContainerRunning);
        let label_selector = [("io.kubernetes.pod.uid".to_owned(), format!("uid-of-{}", pod.config.hostname))].into();
        client.pods_like(v1::PodSandboxFilter { label_selector, ..Default::default() });
    }
    if round.is_multiple_of(5) {
        client.call(|mut c| async move { c.status(v1::StatusRequest { verbose: false }).await }).unwrap();
    }
    if round.is_multiple_of(10) {
        client.image_call(|mut c| async move { c.image_fs_info(v1::ImageFsInfoRequest {}).await }).unwrap();
        client.image_call(|mut c| async move { c.list_images(v1::ListImagesRequest { filter: None }).await }).unwrap();
        let request = v1::ListPodSandboxMetricsRequest {};
        client.call(|mut c| async move { c.list_pod_sandbox_metrics(request).await }).unwrap();
    }
}

#[test]
fn a_daemon_with_polling_clients_does_not_grow() {
    let plan = Plan::get();
    let daemon = Daemon::on(TestEnv::connected(""));
    let client = daemon.client();
    let run = |number| {
        let pod = client.run_pod_of(daemon.pod_config(&format!("pod-{number}")));
        let id = client.run_config(&pod, container("main", &["sleep", "100000"]));
        (pod, id)
    };
    let pods: Vec<_> = (0..plan.pods).map(run).collect();
    // One-time allocations, and those of the pods' start, do not count.
    (0..20).for_each(|round| look(client, &pods, round));
    let (begin, mut last) = (Instant::now(), (Instant::now(), kernel_state::processor_time(daemon.pid())));
    let mut readings = Vec::new();
    for round in 0..plan.rounds {
        look(client, &pods, round);
        let due = plan.period * (round + 1);
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        if round % plan.every == plan.every - 1 {
            let (now, used) = (Instant::now(), kernel_state::processor_time(daemon.pid()));
            let cpu_percent = (used - last.1).as_secs_f64() / (now - last.0).as_secs_f64() * 100.0;
            let held = kernel_state::holding(daemon.pid());
            let anonymous_kib = kernel_state::anonymous_memory(daemon.pid());
            let at = begin.elapsed();
            readings.push(Reading { anonymous_kib, fds: held.fds, threads: held.threads });
            eprintln!(
                "{:7.1} s  CPU {cpu_percent:5.2} %  {anonymous_kib:6} KiB anonymous  {:4} descriptors  {:3} threads",
                at.as_secs_f64(),
                held.fds,
                held.threads
            );
            last = (now, used);
        }
    }
    assert_flat(&readings);
}

/// The second half may use no more than the first.
fn assert_flat(readings: &[Reading]) {
    let (first, second) = readings.split_at(readings.len() / 2);
    let most = |half: &[Reading], of: fn(&Reading) -> u64| half.iter().map(of).max().unwrap();
    // A sample may be taken during a large response, so the median counts.
    let memory = |half: &[Reading]| {
        let mut all: Vec<u64> = half.iter().map(|reading| reading.anonymous_kib).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    assert!(memory(second) <= memory(first) + memory(first) / 20 + 512, "memory grows: {readings:?}");
    let fds = |half| most(half, |reading| u64::try_from(reading.fds).unwrap());
    assert!(fds(second) <= fds(first) + 4, "descriptors pile up: {readings:?}");
    // Threads for blocking work start and exit.
    let threads = |half| most(half, |reading| u64::try_from(reading.threads).unwrap());
    assert!(threads(second) <= threads(first) + 8, "threads pile up: {readings:?}");
}
