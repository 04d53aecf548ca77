//! Measures calls to running containers: exec, update, status, lists.

use cri_api::v1;

use super::args::{BenchArgs, Part};
use super::report::results::Figures;
use super::runtime::{Client, Runtime, in_turns};
use super::specs::{limits, update};
use super::{background_pods, raw_cgroup_writes};

pub(super) const EXEC: &str = "ExecSync true";
pub(super) const EXEC_CPU: &str = "ExecSync true: processor time";
pub(super) const UPDATE_MEMORY: &str = "update memory";
pub(super) const UPDATE_CPU: &str = "update cpu";
pub(super) const STATUS: &str = "ContainerStatus";
pub(super) const POD_STATUS: &str = "PodSandboxStatus";
pub(super) const RUNTIME_STATUS: &str = "Status";
pub(super) const IMAGE_FS: &str = "ImageFsInfo";
pub(super) const LIST: &str = "ListContainers";
pub(super) const STATS: &str = "ListContainerStats";

/// Calls of each kind per round.
const CALLS: u32 = 10;

/// Measures the requested parts; the runtimes take turns.
pub(super) async fn measure(plan: &BenchArgs, runtimes: &mut [Runtime], bare: &mut raw_cgroup_writes::RawWrites) {
    in_turns(runtimes, plan.rounds, async |runtime, round| {
        if plan.wants(Part::Exec) {
            Box::pin(exec(runtime)).await;
        }
        if plan.wants(Part::Update) {
            Box::pin(change(runtime, round)).await;
            bare.measure(CALLS);
        }
        if plan.wants(Part::Status) {
            Box::pin(status(runtime)).await;
        }
        if plan.wants(Part::List) {
            Box::pin(list(runtime)).await;
        }
        if plan.wants(Part::Stats) {
            Box::pin(stats(runtime)).await;
        }
        let mut weighed = Figures::default();
        background_pods::measure_memory(runtime, &mut weighed);
        runtime.figures.merge(weighed);
    })
    .await;
}

/// Returns the containers for one round.
fn some(runtime: &Runtime) -> Vec<String> {
    runtime.containers().into_iter().cycle().take(CALLS as usize).collect()
}

pub(super) async fn exec_true(client: &mut Client, figures: &mut Figures, id: &str) {
    let exec = v1::ExecSyncRequest { container_id: id.to_owned(), cmd: vec!["true".to_owned()], timeout: 10 };
    if let Some(answer) = figures.time(EXEC, client.exec_sync(exec)).await
        && answer.exit_code != 0
    {
        figures.fail(EXEC, super::report::results::Unit::Ms, &format_args!("exit code {}", answer.exit_code));
    }
}

async fn exec(runtime: &mut Runtime) {
    let (before, ids) = (runtime.cpu(), some(runtime));
    for id in &ids {
        exec_true(&mut runtime.client, &mut runtime.figures, id).await;
    }
    runtime.note_cpu(EXEC_CPU, before, CALLS);
}

/// Updates as the kubelet does: memory, then CPU; then the last update again, which changes nothing.
async fn change(runtime: &mut Runtime, round: u32) {
    let (old, new) = if round.is_multiple_of(2) { (200, 300) } else { (300, 200) };
    let mib = if round.is_multiple_of(2) { 96 } else { 64 };
    let (before, ids) = (runtime.cpu(), some(runtime));
    let Runtime { client, figures, .. } = runtime;
    for id in &ids {
        figures.time(UPDATE_MEMORY, client.update_container_resources(update(id, limits(old, mib)))).await;
        figures.time(UPDATE_CPU, client.update_container_resources(update(id, limits(new, mib)))).await;
        figures.time("update nothing", client.update_container_resources(update(id, limits(new, mib)))).await;
    }
    runtime.note_cpu("update: processor time", before, 3 * CALLS);
}

pub(super) async fn container_status(client: &mut Client, figures: &mut Figures, id: &str) {
    let status = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    figures.time(STATUS, client.container_status(status)).await;
}

pub(super) async fn runtime_status(client: &mut Client, figures: &mut Figures) {
    figures.time(RUNTIME_STATUS, client.status(v1::StatusRequest { verbose: false })).await;
}

async fn status(runtime: &mut Runtime) {
    let (before, ids) = (runtime.cpu(), some(runtime));
    for id in &ids {
        container_status(&mut runtime.client, &mut runtime.figures, id).await;
    }
    runtime.note_cpu("ContainerStatus: processor time", before, CALLS);
    let Runtime { client, images, figures, pods, .. } = runtime;
    for pod in pods.iter().cycle().take(CALLS as usize) {
        let status = v1::PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: false };
        figures.time(POD_STATUS, client.pod_sandbox_status(status)).await;
        runtime_status(client, figures).await;
        figures.time(IMAGE_FS, images.image_fs_info(v1::ImageFsInfoRequest {})).await;
        // The cost of a call that does nothing.
        figures.time("Version", client.version(v1::VersionRequest::default())).await;
    }
}

async fn list(runtime: &mut Runtime) {
    let Runtime { client, figures, .. } = runtime;
    for _ in 0..CALLS {
        figures.time(LIST, client.list_containers(v1::ListContainersRequest::default())).await;
        figures.time("ListPodSandbox", client.list_pod_sandbox(v1::ListPodSandboxRequest::default())).await;
    }
}

pub(super) async fn container_stats(client: &mut Client, figures: &mut Figures) {
    figures.time(STATS, client.list_container_stats(v1::ListContainerStatsRequest::default())).await;
}

async fn stats(runtime: &mut Runtime) {
    let before = runtime.cpu();
    for _ in 0..CALLS.div_ceil(3) {
        container_stats(&mut runtime.client, &mut runtime.figures).await;
    }
    runtime.note_cpu("ListContainerStats: processor time", before, CALLS.div_ceil(3));
    let Runtime { client, figures, .. } = runtime;
    for _ in 0..CALLS.div_ceil(3) {
        let all = v1::ListPodSandboxStatsRequest::default();
        figures.time("ListPodSandboxStats", client.list_pod_sandbox_stats(all)).await;
    }
}
