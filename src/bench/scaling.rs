//! Measures latency and memory with a growing number of pods.

use cri_api::v1;

use super::args::BenchArgs;
use super::background_pods::{grow, measure_memory};
use super::reads::{LIST, container_stats, container_status, exec_true, runtime_status};
use super::report::results::Figures;
use super::runtime::{Runtime, Step, in_turns};

/// Number of pods created last before each step; their ready times count for the step.
const LAST: usize = 10;
/// Calls of each kind per step.
const CALLS: usize = 20;

/// Returns whether each runtime had all pods in every step; the first step without ends its measurement.
pub(super) async fn measure(plan: &BenchArgs, runtimes: &mut [Runtime]) -> bool {
    for runtime in runtimes.iter_mut() {
        runtime.clear().await;
    }
    let mut steps: Vec<usize> = plan.steps.iter().map(|step| *step as usize).filter(|step| *step > 0).collect();
    steps.sort_unstable();
    steps.dedup();
    let rounds = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    in_turns(runtimes, rounds, async |runtime, round| {
        let reached = runtime.growth.len() == round as usize;
        if reached {
            Box::pin(step(plan, runtime, steps[round as usize])).await;
        }
    })
    .await;
    let complete = runtimes.iter().all(|runtime| runtime.growth.len() == steps.len());
    for runtime in runtimes.iter_mut() {
        runtime.clear().await;
    }
    complete
}

/// Creates pods up to this number, and measures.
async fn step(plan: &BenchArgs, runtime: &mut Runtime, pods: usize) {
    let mut before = Figures::default();
    Box::pin(grow(runtime, &mut before, pods.saturating_sub(LAST), plan.containers)).await;
    let mut figures = Figures::default();
    figures.add_failures(&before);
    Box::pin(grow(runtime, &mut figures, pods, plan.containers)).await;
    if runtime.pods.len() < pods {
        runtime.figures.add_failures(&figures);
        return;
    }
    let ids = runtime.containers();
    // Includes the newest containers: some runtimes are slower for those.
    for id in ids.iter().rev().chain(&ids).cycle().step_by(3).take(if ids.is_empty() { 0 } else { CALLS }) {
        exec_true(&mut runtime.client, &mut figures, id).await;
        container_status(&mut runtime.client, &mut figures, id).await;
    }
    for _ in 0..CALLS / 4 {
        figures.time(LIST, runtime.client.list_containers(v1::ListContainersRequest::default())).await;
        container_stats(&mut runtime.client, &mut figures).await;
        runtime_status(&mut runtime.client, &mut figures).await;
    }
    measure_memory(runtime, &mut figures);
    runtime.growth.push(Step { pods: runtime.pods.len(), containers: ids.len(), figures });
}
