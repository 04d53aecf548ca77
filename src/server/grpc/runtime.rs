//! RuntimeService.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use wire::v1::runtime_service_server::RuntimeService;
use wire::v1::*;

use super::chunks::{self, Chunks};
use super::{
    Answer, about, about_container, about_pod, log_warnings, looked_up, not_yet, stats, status, to_the_end, verbose,
};
use crate::convert;
use crate::convert::container::id;
use crate::runtime::{ExecOutput, Runtime};

/// The stream of a call that never answers with one.
type NoStream<T> = tokio_stream::Empty<Result<T, Status>>;

const STREAMING: &str = "streaming is planned";
const LISTS: &str = "use the plain list; lists in chunks are planned";
const METRICS: &str = "metrics are planned";
const CHECKPOINTS: &str = "checkpoints are not planned yet";

#[derive(Debug)]
pub(crate) struct RuntimeApi {
    runtime: Arc<Runtime>,
}

impl RuntimeApi {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime }
    }
}

#[tonic::async_trait]
impl RuntimeService for RuntimeApi {
    type StreamPodSandboxesStream = NoStream<StreamPodSandboxesResponse>;
    type StreamContainersStream = NoStream<StreamContainersResponse>;
    type StreamContainerStatsStream = Chunks<StreamContainerStatsResponse>;
    type StreamPodSandboxStatsStream = Chunks<StreamPodSandboxStatsResponse>;
    type StreamPodSandboxMetricsStream = NoStream<StreamPodSandboxMetricsResponse>;
    type GetContainerEventsStream = NoStream<ContainerEventResponse>;

    async fn version(&self, _: Request<VersionRequest>) -> Answer<VersionResponse> {
        Ok(Response::new(about::version()))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Answer<StatusResponse> {
        let StatusRequest { verbose: wanted } = request.into_inner();
        let runtime = Arc::clone(&self.runtime);
        let info = match wanted {
            true => looked_up(move || verbose(true, || runtime.info())).await?,
            false => Default::default(),
        };
        Ok(Response::new(StatusResponse {
            status: Some(RuntimeStatus {
                conditions: self.runtime.conditions().into_iter().map(about::condition).collect(),
            }),
            info,
            runtime_handlers: about::handlers(),
            features: Some(about::features()),
        }))
    }

    async fn runtime_config(&self, _: Request<RuntimeConfigRequest>) -> Answer<RuntimeConfigResponse> {
        Ok(Response::new(about::runtime_config(self.runtime.config().cgroup.driver)))
    }

    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> Answer<UpdateRuntimeConfigResponse> {
        let UpdateRuntimeConfigRequest { runtime_config } = request.into_inner();
        let cidr = runtime_config.and_then(|config| config.network_config).map(|network| network.pod_cidr);
        if let Some(cidr) = cidr.filter(|cidr| !cidr.is_empty()) {
            tracing::warn!(cidr, "the node's pod address range is not used yet");
        }
        Ok(Response::new(UpdateRuntimeConfigResponse {}))
    }

    async fn run_pod_sandbox(&self, request: Request<RunPodSandboxRequest>) -> Answer<RunPodSandboxResponse> {
        let annotation = self.runtime.config().resources.annotation.as_ref();
        let (spec, warnings) = convert::pod::run(request.into_inner(), annotation).map_err(status::of)?;
        log_warnings(&warnings);
        let runtime = Arc::clone(&self.runtime);
        let pod = to_the_end(async move { runtime.run_pod(spec).await }).await?;
        about_pod(pod.as_str());
        Ok(Response::new(RunPodSandboxResponse { pod_sandbox_id: pod.into() }))
    }

    async fn stop_pod_sandbox(&self, request: Request<StopPodSandboxRequest>) -> Answer<StopPodSandboxResponse> {
        let StopPodSandboxRequest { pod_sandbox_id } = request.into_inner();
        let pod = id("pod_sandbox_id", pod_sandbox_id).map_err(status::of)?;
        about_pod(&pod);
        let runtime = Arc::clone(&self.runtime);
        to_the_end(async move { runtime.stop_pod(&pod).await }).await?;
        Ok(Response::new(StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(&self, request: Request<RemovePodSandboxRequest>) -> Answer<RemovePodSandboxResponse> {
        let RemovePodSandboxRequest { pod_sandbox_id } = request.into_inner();
        let pod = id("pod_sandbox_id", pod_sandbox_id).map_err(status::of)?;
        about_pod(&pod);
        let runtime = Arc::clone(&self.runtime);
        to_the_end(async move { runtime.remove_pod(&pod).await }).await?;
        Ok(Response::new(RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(&self, request: Request<PodSandboxStatusRequest>) -> Answer<PodSandboxStatusResponse> {
        let PodSandboxStatusRequest { pod_sandbox_id, verbose: wanted } = request.into_inner();
        let text = id("pod_sandbox_id", pod_sandbox_id).map_err(status::of)?;
        about_pod(&text);
        let pod = self.runtime.pod(&text).map_err(status::of)?;
        Ok(Response::new(PodSandboxStatusResponse {
            status: Some(convert::status::pod(&pod)),
            info: verbose(wanted, || self.runtime.pod_info(&pod)),
            // Only for callers that follow container events, which there are none of yet.
            containers_statuses: Vec::new(),
            timestamp: 0,
        }))
    }

    async fn list_pod_sandbox(&self, request: Request<ListPodSandboxRequest>) -> Answer<ListPodSandboxResponse> {
        let ListPodSandboxRequest { filter } = request.into_inner();
        let filter = convert::filter::pods(filter).map_err(status::of)?;
        let pods = filter.apply(self.runtime.pods());
        let items = pods.iter().map(|pod| convert::status::pod_item(pod)).collect();
        Ok(Response::new(ListPodSandboxResponse { items }))
    }

    async fn create_container(&self, request: Request<CreateContainerRequest>) -> Answer<CreateContainerResponse> {
        let create = convert::container::create(request.into_inner()).map_err(status::of)?;
        let convert::container::Create { pod, spec, pod_spec, warnings } = create;
        about_pod(&pod);
        log_warnings(&warnings);
        let runtime = Arc::clone(&self.runtime);
        let container = to_the_end(async move { runtime.create(&pod, spec, pod_spec).await }).await?;
        about_container(container.as_str());
        Ok(Response::new(CreateContainerResponse { container_id: container.into() }))
    }

    async fn start_container(&self, request: Request<StartContainerRequest>) -> Answer<StartContainerResponse> {
        let StartContainerRequest { container_id } = request.into_inner();
        let container = id("container_id", container_id).map_err(status::of)?;
        about_container(&container);
        let runtime = Arc::clone(&self.runtime);
        to_the_end(async move { runtime.start(&container).await }).await?;
        Ok(Response::new(StartContainerResponse {}))
    }

    async fn stop_container(&self, request: Request<StopContainerRequest>) -> Answer<StopContainerResponse> {
        let (container, grace) = convert::container::stop(request.into_inner()).map_err(status::of)?;
        about_container(&container);
        let runtime = Arc::clone(&self.runtime);
        to_the_end(async move { runtime.stop(&container, grace).await }).await?;
        Ok(Response::new(StopContainerResponse {}))
    }

    async fn remove_container(&self, request: Request<RemoveContainerRequest>) -> Answer<RemoveContainerResponse> {
        let RemoveContainerRequest { container_id } = request.into_inner();
        let container = id("container_id", container_id).map_err(status::of)?;
        about_container(&container);
        let runtime = Arc::clone(&self.runtime);
        to_the_end(async move { runtime.remove(&container).await }).await?;
        Ok(Response::new(RemoveContainerResponse {}))
    }

    async fn list_containers(&self, request: Request<ListContainersRequest>) -> Answer<ListContainersResponse> {
        let ListContainersRequest { filter } = request.into_inner();
        let filter = convert::filter::containers(filter).map_err(status::of)?;
        let containers = filter.apply(self.runtime.containers());
        let containers = containers.iter().map(|container| convert::status::container_item(container)).collect();
        Ok(Response::new(ListContainersResponse { containers }))
    }

    async fn container_status(&self, request: Request<ContainerStatusRequest>) -> Answer<ContainerStatusResponse> {
        let ContainerStatusRequest { container_id, verbose: wanted } = request.into_inner();
        let text = id("container_id", container_id).map_err(status::of)?;
        about_container(&text);
        let (container, limits) = self.runtime.container_now(&text).map_err(status::of)?;
        Ok(Response::new(ContainerStatusResponse {
            status: Some(convert::status::container(&container, limits.as_ref())),
            info: verbose(wanted, || self.runtime.container_info(&container, limits.as_ref())),
        }))
    }

    async fn reopen_container_log(
        &self,
        request: Request<ReopenContainerLogRequest>,
    ) -> Answer<ReopenContainerLogResponse> {
        let ReopenContainerLogRequest { container_id } = request.into_inner();
        let container = id("container_id", container_id).map_err(status::of)?;
        about_container(&container);
        let runtime = Arc::clone(&self.runtime);
        to_the_end(async move { runtime.reopen_log(&container).await }).await?;
        Ok(Response::new(ReopenContainerLogResponse {}))
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> Answer<ExecSyncResponse> {
        let exec = convert::container::exec(request.into_inner()).map_err(status::of)?;
        let convert::container::Exec { container, command, timeout } = exec;
        about_container(&container);
        // Not to its end: a command is killed when its caller hangs up.
        // Boxed, since it holds the buffers that the output is read through.
        let output = Box::pin(self.runtime.exec_sync(&container, command, timeout)).await.map_err(status::of)?;
        let ExecOutput { stdout, stderr, code } = output;
        Ok(Response::new(ExecSyncResponse { stdout, stderr, exit_code: code }))
    }

    async fn exec(&self, _: Request<ExecRequest>) -> Answer<ExecResponse> {
        not_yet("Exec", STREAMING)
    }

    async fn attach(&self, _: Request<AttachRequest>) -> Answer<AttachResponse> {
        not_yet("Attach", STREAMING)
    }

    async fn port_forward(&self, _: Request<PortForwardRequest>) -> Answer<PortForwardResponse> {
        not_yet("PortForward", STREAMING)
    }

    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> Answer<UpdateContainerResourcesResponse> {
        let (container, asked, warnings) = convert::resources::update(request.into_inner()).map_err(status::of)?;
        about_container(&container);
        log_warnings(&warnings);
        let runtime = Arc::clone(&self.runtime);
        to_the_end(async move { runtime.update(&container, asked).await }).await?;
        Ok(Response::new(UpdateContainerResourcesResponse {}))
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<UpdatePodSandboxResourcesRequest>,
    ) -> Answer<UpdatePodSandboxResourcesResponse> {
        let (pod, asked, warnings) = convert::resources::update_pod(request.into_inner()).map_err(status::of)?;
        about_pod(&pod);
        log_warnings(&warnings);
        let runtime = Arc::clone(&self.runtime);
        to_the_end(async move { runtime.update_pod(&pod, asked).await }).await?;
        Ok(Response::new(UpdatePodSandboxResourcesResponse {}))
    }

    async fn stream_pod_sandboxes(
        &self,
        _: Request<StreamPodSandboxesRequest>,
    ) -> Answer<Self::StreamPodSandboxesStream> {
        not_yet("StreamPodSandboxes", LISTS)
    }

    async fn stream_containers(&self, _: Request<StreamContainersRequest>) -> Answer<Self::StreamContainersStream> {
        not_yet("StreamContainers", LISTS)
    }

    async fn container_stats(&self, request: Request<ContainerStatsRequest>) -> Answer<ContainerStatsResponse> {
        let ContainerStatsRequest { container_id } = request.into_inner();
        let container = id("container_id", container_id).map_err(status::of)?;
        about_container(&container);
        let stats = stats::of_container(&self.runtime, container).await?;
        Ok(Response::new(ContainerStatsResponse { stats: Some(stats) }))
    }

    async fn list_container_stats(
        &self,
        request: Request<ListContainerStatsRequest>,
    ) -> Answer<ListContainerStatsResponse> {
        let ListContainerStatsRequest { filter } = request.into_inner();
        let stats = stats::of_containers(&self.runtime, filter).await?;
        Ok(Response::new(ListContainerStatsResponse { stats }))
    }

    async fn stream_container_stats(
        &self,
        request: Request<StreamContainerStatsRequest>,
    ) -> Answer<Self::StreamContainerStatsStream> {
        let StreamContainerStatsRequest { filter } = request.into_inner();
        let stats = stats::of_containers(&self.runtime, filter).await?;
        Ok(chunks::stream(stats, |container_stats| StreamContainerStatsResponse { container_stats }))
    }

    async fn pod_sandbox_stats(&self, request: Request<PodSandboxStatsRequest>) -> Answer<PodSandboxStatsResponse> {
        let PodSandboxStatsRequest { pod_sandbox_id } = request.into_inner();
        let pod = id("pod_sandbox_id", pod_sandbox_id).map_err(status::of)?;
        about_pod(&pod);
        let stats = stats::of_pod(&self.runtime, pod).await?;
        Ok(Response::new(PodSandboxStatsResponse { stats: Some(stats) }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<ListPodSandboxStatsRequest>,
    ) -> Answer<ListPodSandboxStatsResponse> {
        let ListPodSandboxStatsRequest { filter } = request.into_inner();
        let stats = stats::of_pods(&self.runtime, filter).await?;
        Ok(Response::new(ListPodSandboxStatsResponse { stats }))
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<StreamPodSandboxStatsRequest>,
    ) -> Answer<Self::StreamPodSandboxStatsStream> {
        let StreamPodSandboxStatsRequest { filter } = request.into_inner();
        let stats = stats::of_pods(&self.runtime, filter).await?;
        Ok(chunks::stream(stats, |pod_sandbox_stats| StreamPodSandboxStatsResponse { pod_sandbox_stats }))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<ListMetricDescriptorsRequest>,
    ) -> Answer<ListMetricDescriptorsResponse> {
        not_yet("ListMetricDescriptors", METRICS)
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<ListPodSandboxMetricsRequest>,
    ) -> Answer<ListPodSandboxMetricsResponse> {
        not_yet("ListPodSandboxMetrics", METRICS)
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        not_yet("StreamPodSandboxMetrics", METRICS)
    }

    async fn get_container_events(&self, _: Request<GetEventsRequest>) -> Answer<Self::GetContainerEventsStream> {
        not_yet("GetContainerEvents", "events are planned")
    }

    async fn checkpoint_container(
        &self,
        _: Request<CheckpointContainerRequest>,
    ) -> Answer<CheckpointContainerResponse> {
        not_yet("CheckpointContainer", CHECKPOINTS)
    }

    async fn checkpoint_pod(&self, _: Request<CheckpointPodRequest>) -> Answer<CheckpointPodResponse> {
        not_yet("CheckpointPod", CHECKPOINTS)
    }

    async fn restore_pod(&self, _: Request<RestorePodRequest>) -> Answer<RestorePodResponse> {
        not_yet("RestorePod", CHECKPOINTS)
    }
}
