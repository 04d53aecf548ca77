//! Stats, shared by the lists and the streams. They are read from files, on threads that may block.

use std::sync::Arc;

use cri_api::v1;
use tonic::Status;

use super::{run_blocking, status};
use crate::convert;
use crate::runtime::{Runtime, StatsError};

pub(super) async fn of_container(runtime: &Arc<Runtime>, id: String) -> Result<v1::ContainerStats, Status> {
    let runtime = Arc::clone(runtime);
    let look = move || {
        let seen = runtime.container_stats(&id)?;
        Ok(convert::stats::container(&seen, &runtime.layers_dir()))
    };
    run_blocking(look).await?.map_err(status::of::<StatsError>)
}

pub(super) async fn of_containers(
    runtime: &Arc<Runtime>,
    filter: Option<v1::ContainerStatsFilter>,
) -> Result<Vec<v1::ContainerStats>, Status> {
    let runtime = Arc::clone(runtime);
    let filter = convert::filter::container_stats(filter);
    run_blocking(move || {
        let seen = runtime.list_container_stats(&filter.apply(runtime.containers()));
        let writables = runtime.layers_dir();
        seen.iter().map(|seen| convert::stats::container(seen, &writables)).collect()
    })
    .await
}

pub(super) async fn of_pod(runtime: &Arc<Runtime>, id: String) -> Result<v1::PodSandboxStats, Status> {
    let runtime = Arc::clone(runtime);
    let look = move || {
        let seen = runtime.pod_stats(&id)?;
        Ok(convert::stats::pod(&seen, &runtime.layers_dir()))
    };
    run_blocking(look).await?.map_err(status::of::<StatsError>)
}

pub(super) async fn of_pods(
    runtime: &Arc<Runtime>,
    filter: Option<v1::PodSandboxStatsFilter>,
) -> Result<Vec<v1::PodSandboxStats>, Status> {
    let runtime = Arc::clone(runtime);
    let filter = convert::filter::pod_stats(filter);
    run_blocking(move || {
        let seen = runtime.list_pod_stats(&filter.apply(runtime.pods()));
        let writables = runtime.layers_dir();
        seen.iter().map(|seen| convert::stats::pod(seen, &writables)).collect()
    })
    .await
}
