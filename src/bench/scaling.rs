//! Latency and memory with more and more pods.

use cri_api::v1;

use super::args::BenchArgs;
use super::background_pods::{grow, measure_memory};
use super::reads::{LIST, container_stats, container_status, exec_true};
use super::report::results::Figures;
use super::runtime::{Runtime, Step, in_turns};

/// Pods, the last before each step, whose times count for it.
const LAST: usize = 10;
/// Calls of each kind at each step.
const CALLS: usize = 20;

pub(super) async fn measure(plan: &BenchArgs, runtimes: &mut [Runtime]) {
    for runtime in runtimes.iter_mut() {
        runtime.clear().await;
    }
    let mut steps: Vec<usize> = plan.steps.iter().map(|step| *step as usize).filter(|step| *step > 0).collect();
    steps.sort_unstable();
    steps.dedup();
    let rounds = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    in_turns(runtimes, rounds, async |runtime, round| {
        Box::pin(step(plan, runtime, steps[round as usize])).await;
    })
    .await;
    for runtime in runtimes.iter_mut() {
        runtime.clear().await;
    }
}

/// Goes on to so many pods, and measures there.
async fn step(plan: &BenchArgs, runtime: &mut Runtime, pods: usize) {
    let mut before = Figures::default();
    Box::pin(grow(runtime, &mut before, pods.saturating_sub(LAST), plan.containers)).await;
    let mut figures = Figures::default();
    figures.add_failures(&before);
    Box::pin(grow(runtime, &mut figures, pods, plan.containers)).await;
    let ids = runtime.containers();
    // Also the newest: some runtimes are slower the later a container came.
    for id in ids.iter().rev().chain(&ids).cycle().step_by(3).take(if ids.is_empty() { 0 } else { CALLS }) {
        exec_true(&mut runtime.client, &mut figures, id).await;
        container_status(&mut runtime.client, &mut figures, id).await;
    }
    for _ in 0..CALLS / 4 {
        figures.time(LIST, runtime.client.list_containers(v1::ListContainersRequest::default())).await;
        container_stats(&mut runtime.client, &mut figures).await;
    }
    measure_memory(runtime, &mut figures);
    runtime.growth.push(Step { pods: runtime.pods.len(), containers: ids.len(), figures });
}
