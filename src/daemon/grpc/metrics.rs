//! Metrics of pods, shared by the list and the stream.

use std::sync::Arc;

use cri_api::v1;
use tonic::Status;

use super::run_blocking;
use crate::convert;
use crate::runtime::Runtime;

pub(super) async fn of_pods(runtime: &Arc<Runtime>) -> Result<Vec<v1::PodSandboxMetrics>, Status> {
    let runtime = Arc::clone(runtime);
    run_blocking(move || convert::metrics::pods(&runtime.list_metrics())).await
}
