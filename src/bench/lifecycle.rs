//! Measures creation and removal of pods with one container, one at a time and several in parallel.

use std::time::Instant;

use cri_api::v1;
use tokio::task::JoinSet;

use super::args::BenchArgs;
use super::processes::machine::Machine;
use super::report::results::{Figures, Unit};
use super::runtime::{Client, Pod, Runtime, in_turns, remove};
use super::specs::Specs;

pub(super) const READY: &str = "pod + container ready";
pub(super) const TEARDOWN: &str = "teardown";
pub(super) const CREATE: &str = "CreateContainer";
pub(super) const START: &str = "StartContainer";
pub(super) const CPU: &str = "pod life: processor time";
pub(super) const ALONE: &str = "pod lives, one at a time";
pub(super) const TOGETHER: &str = "pod lives, several at once";
pub(super) const ALONE_PER_CPU: &str = "pod lives per CPU second, one at a time";
pub(super) const TOGETHER_PER_CPU: &str = "pod lives per CPU second, several at once";
const OTHERS: &str = "other processes: CPU time in a second";
pub(super) const READY_TOGETHER: &str = "ready, several at once";

/// Returns whether each runtime has started a container; the rest is not measured if one has not.
pub(super) async fn measure(plan: &BenchArgs, runtimes: &mut [Runtime]) -> bool {
    in_turns(runtimes, plan.rounds, async |runtime, round| {
        let before = runtime.cpu();
        let Runtime { client, figures, shape, .. } = runtime;
        Box::pin(run_once(client, figures, shape, &format!("life-{round}"))).await;
        runtime.note_cpu(CPU, before, 1);
    })
    .await;
    if !runtimes.iter().all(|runtime| runtime.figures.get(READY).is_some_and(|ready| !ready.values.is_empty())) {
        return false;
    }
    in_turns(runtimes, plan.rounds.div_ceil(4), async |runtime, round| {
        for (names, at_once) in [([ALONE, ALONE_PER_CPU], 1), ([TOGETHER, TOGETHER_PER_CPU], plan.at_once)] {
            Box::pin(run_counted(runtime, names, at_once, plan.at_once * 2, round)).await;
        }
    })
    .await;
    true
}

/// Creates and removes one pod with one container.
async fn run_once(client: &mut Client, figures: &mut Figures, shape: &Specs, name: &str) {
    let Some(pod) = Box::pin(make(client, figures, shape, name)).await else { return };
    end(client, figures, pod).await;
}

/// Creates a pod with a running container; removes the pod if a step fails.
pub(super) async fn make(client: &mut Client, figures: &mut Figures, shape: &Specs, name: &str) -> Option<Pod> {
    let begin = Instant::now();
    let config = shape.pod(name);
    let run = v1::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
    let Some(answer) = figures.time("RunPodSandbox", client.run_pod_sandbox(run)).await else {
        figures.fail(READY, Unit::Ms, &"RunPodSandbox failed");
        return None;
    };
    let mut pod = Pod { id: answer.pod_sandbox_id, containers: Vec::new() };
    if Box::pin(add(client, figures, &mut pod, config, shape.idle("main"))).await.is_some() {
        figures.add_time(READY, begin.elapsed());
        return Some(pod);
    }
    figures.fail(READY, Unit::Ms, &"a container failed");
    if let Err(status) = remove(client, &pod.id).await {
        figures.fail(TEARDOWN, Unit::Ms, &status.message());
    }
    None
}

/// Creates and starts a container in a pod.
pub(super) async fn add(
    client: &mut Client,
    figures: &mut Figures,
    pod: &mut Pod,
    sandbox: v1::PodSandboxConfig,
    container: v1::ContainerConfig,
) -> Option<()> {
    let create = v1::CreateContainerRequest {
        pod_sandbox_id: pod.id.clone(),
        config: Some(container),
        sandbox_config: Some(sandbox),
    };
    let created = Box::pin(figures.time(CREATE, client.create_container(create))).await?;
    let container_id = created.container_id;
    pod.containers.push(container_id.clone());
    let start = v1::StartContainerRequest { container_id };
    figures.time(START, client.start_container(start)).await?;
    Some(())
}

/// Stops and removes the container, then the pod. Runs all steps, also after a failure.
async fn end(client: &mut Client, figures: &mut Figures, pod: Pod) {
    let begin = Instant::now();
    let mut whole = true;
    for container_id in pod.containers {
        let stop = v1::StopContainerRequest { container_id: container_id.clone(), timeout: 0 };
        whole &= figures.time("StopContainer", client.stop_container(stop)).await.is_some();
        let remove = v1::RemoveContainerRequest { container_id };
        whole &= figures.time("RemoveContainer", client.remove_container(remove)).await.is_some();
    }
    let stop = v1::StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() };
    whole &= figures.time("StopPodSandbox", client.stop_pod_sandbox(stop)).await.is_some();
    let remove = v1::RemovePodSandboxRequest { pod_sandbox_id: pod.id };
    whole &= figures.time("RemovePodSandbox", client.remove_pod_sandbox(remove)).await.is_some();
    if whole {
        figures.add_time(TEARDOWN, begin.elapsed());
    } else {
        figures.fail(TEARDOWN, Unit::Ms, &"a step failed");
    }
}

/// Creates and removes `count` pods; records the rate per second, and per second of CPU time of the whole machine.
async fn run_counted(runtime: &mut Runtime, names: [&str; 2], at_once: u32, count: u32, round: u32) {
    let [rate, per_cpu] = names;
    let machine = match Machine::start().await {
        Ok(machine) => machine,
        Err(error) => return runtime.figures.fail(per_cpu, Unit::PerSecond, &error),
    };
    runtime.figures.add(OTHERS, Unit::Ms, machine.others_ms());
    let before = runtime.figures.errors();
    Box::pin(run_parallel(runtime, rate, at_once, count, round)).await;
    match machine.finish().await {
        Ok(Some(used)) if runtime.figures.errors() == before => {
            runtime.figures.add(per_cpu, Unit::PerSecond, f64::from(count) / used);
        }
        // Other processes use too much, or a pod failed.
        Ok(_) => {}
        Err(error) => runtime.figures.fail(per_cpu, Unit::PerSecond, &error),
    }
}

/// Creates and removes `count` pods, at most `at_once` in parallel; records the rate per second.
async fn run_parallel(runtime: &mut Runtime, name: &str, at_once: u32, count: u32, round: u32) {
    let mut workers = JoinSet::new();
    let begin = Instant::now();
    for worker in 0..at_once {
        let (mut client, shape) = (runtime.client.clone(), runtime.shape.clone());
        workers.spawn(async move {
            let mut figures = Figures::default();
            for turn in (worker..count).step_by(at_once as usize) {
                let name = format!("crowd-{at_once}-{round}-{turn}");
                Box::pin(run_once(&mut client, &mut figures, &shape, &name)).await;
            }
            figures
        });
    }
    let mut all = Figures::default();
    while let Some(done) = workers.join_next().await {
        match done {
            Ok(figures) => all.merge(figures),
            Err(error) => all.fail(READY, Unit::Ms, &error),
        }
    }
    let took = begin.elapsed().as_secs_f64();
    if let Some(failed) = all.iter().find(|figure| figure.errors > 0) {
        let why = failed.first_error.clone().unwrap_or_default();
        runtime.figures.fail(name, Unit::PerSecond, &format_args!("{}: {why}", failed.name));
        return;
    }
    runtime.figures.add(name, Unit::PerSecond, f64::from(count) / took);
    if at_once > 1 {
        let times = all.get(READY).map(|figure| figure.values.as_slice()).unwrap_or_default();
        times.iter().for_each(|time| runtime.figures.add(READY_TOGETHER, Unit::Ms, *time));
    }
}
