//! RuntimeService.

use std::sync::Arc;
use std::time::SystemTime;

use cri_api::v1::runtime_service_server::RuntimeService;
use cri_api::v1::*;
use tonic::{Request, Response, Status};

use super::list_stream::Chunks;
use super::{
    Answer, about_container, about_pod, events, list_stream, log_warnings, looked_up, metrics, not_yet, stats, status,
    to_the_end, verbose, version,
};
use crate::convert;
use crate::convert::container::id;
use crate::runtime::{ExecOutput, Runtime};
use crate::stream_server::{Request as Stream, Streaming};

const CHECKPOINTS: &str = "checkpoints are not planned yet";

#[derive(Debug)]
pub(crate) struct RuntimeApi {
    runtime: Arc<Runtime>,
    streaming: Arc<Streaming>,
}

impl RuntimeApi {
    pub(crate) fn new(runtime: Arc<Runtime>, streaming: Arc<Streaming>) -> Self {
        Self { runtime, streaming }
    }

    fn pods_like(&self, filter: Option<PodSandboxFilter>) -> Result<Vec<PodSandbox>, Status> {
        let filter = convert::filter::pods(filter).map_err(status::of)?;
        let pods = filter.apply(self.runtime.pods());
        Ok(pods.iter().map(|pod| convert::status::pod_item(pod)).collect())
    }

    fn containers_like(&self, filter: Option<ContainerFilter>) -> Result<Vec<Container>, Status> {
        let filter = convert::filter::containers(filter).map_err(status::of)?;
        let containers = filter.apply(self.runtime.containers());
        Ok(containers.iter().map(|container| convert::status::container_item(container)).collect())
    }
}

#[tonic::async_trait]
impl RuntimeService for RuntimeApi {
    type StreamPodSandboxesStream = Chunks<StreamPodSandboxesResponse>;
    type StreamContainersStream = Chunks<StreamContainersResponse>;
    type StreamContainerStatsStream = Chunks<StreamContainerStatsResponse>;
    type StreamPodSandboxStatsStream = Chunks<StreamPodSandboxStatsResponse>;
    type StreamPodSandboxMetricsStream = Chunks<StreamPodSandboxMetricsResponse>;
    type GetContainerEventsStream = Chunks<ContainerEventResponse>;

    async fn version(&self, _: Request<VersionRequest>) -> Answer<VersionResponse> {
        Ok(Response::new(version::version()))
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
                conditions: self.runtime.conditions().await.into_iter().map(version::condition).collect(),
            }),
            info,
            runtime_handlers: version::handlers(&self.runtime.settings().handlers, self.runtime.has_user_ns()),
            features: Some(version::features(self.runtime.has_user_ns())),
        }))
    }

    async fn runtime_config(&self, _: Request<RuntimeConfigRequest>) -> Answer<RuntimeConfigResponse> {
        Ok(Response::new(version::runtime_config(self.runtime.config().cgroup.driver)))
    }

    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> Answer<UpdateRuntimeConfigResponse> {
        let UpdateRuntimeConfigRequest { runtime_config } = request.into_inner();
        let ranges = runtime_config.and_then(|config| config.network_config).map(|network| network.pod_cidr);
        if let Some(ranges) = ranges.filter(|ranges| !ranges.is_empty()) {
            let runtime = Arc::clone(&self.runtime);
            to_the_end(async move { runtime.set_addresses(ranges).await }).await?;
        }
        Ok(Response::new(UpdateRuntimeConfigResponse {}))
    }

    async fn run_pod_sandbox(&self, request: Request<RunPodSandboxRequest>) -> Answer<RunPodSandboxResponse> {
        let settings = self.runtime.settings();
        let annotation = settings.resources.annotation.as_ref();
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
        // A kubelet that follows events and finds a time here takes `containers_statuses` in place of its own looks, without noting which
        // of them are of this sandbox: it would start every init container again and again. So do the peers.
        let timestamp = if wanted { convert::status::nanos(SystemTime::now()) } else { 0 };
        let pod = self.runtime.pod(&text).map_err(status::of)?;
        Ok(Response::new(PodSandboxStatusResponse {
            status: Some(convert::status::pod(&pod)),
            info: verbose(wanted, || self.runtime.pod_info(&pod)),
            containers_statuses: convert::event::statuses(&self.runtime.containers_now(&pod.id)),
            timestamp,
        }))
    }

    async fn list_pod_sandbox(&self, request: Request<ListPodSandboxRequest>) -> Answer<ListPodSandboxResponse> {
        let ListPodSandboxRequest { filter } = request.into_inner();
        Ok(Response::new(ListPodSandboxResponse { items: self.pods_like(filter)? }))
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
        Ok(Response::new(ListContainersResponse { containers: self.containers_like(filter)? }))
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

    async fn exec(&self, request: Request<ExecRequest>) -> Answer<ExecResponse> {
        let (container, command, wants) = convert::stream::exec(request.into_inner()).map_err(status::of)?;
        about_container(&container);
        let container = self.runtime.running(&container).map_err(status::of)?;
        let url = self.streaming.url(Stream::Exec { container, command, wants }).map_err(status::of)?;
        Ok(Response::new(ExecResponse { url }))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Answer<AttachResponse> {
        let (container, wants) = convert::stream::attach(request.into_inner()).map_err(status::of)?;
        about_container(&container);
        let container = self.runtime.running(&container).map_err(status::of)?;
        let url = self.streaming.url(Stream::Attach { container, wants }).map_err(status::of)?;
        Ok(Response::new(AttachResponse { url }))
    }

    async fn port_forward(&self, request: Request<PortForwardRequest>) -> Answer<PortForwardResponse> {
        let (pod, ports) = convert::stream::port_forward(request.into_inner()).map_err(status::of)?;
        about_pod(&pod);
        let pod = self.runtime.ready(&pod).map_err(status::of)?;
        let url = self.streaming.url(Stream::PortForward { pod, ports }).map_err(status::of)?;
        Ok(Response::new(PortForwardResponse { url }))
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
        request: Request<StreamPodSandboxesRequest>,
    ) -> Answer<Self::StreamPodSandboxesStream> {
        let StreamPodSandboxesRequest { filter } = request.into_inner();
        let pods = self.pods_like(filter)?;
        Ok(list_stream::stream(pods, |pod_sandboxes| StreamPodSandboxesResponse { pod_sandboxes }))
    }

    async fn stream_containers(
        &self,
        request: Request<StreamContainersRequest>,
    ) -> Answer<Self::StreamContainersStream> {
        let StreamContainersRequest { filter } = request.into_inner();
        let containers = self.containers_like(filter)?;
        Ok(list_stream::stream(containers, |containers| StreamContainersResponse { containers }))
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
        Ok(list_stream::stream(stats, |container_stats| StreamContainerStatsResponse { container_stats }))
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
        Ok(list_stream::stream(stats, |pod_sandbox_stats| StreamPodSandboxStatsResponse { pod_sandbox_stats }))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<ListMetricDescriptorsRequest>,
    ) -> Answer<ListMetricDescriptorsResponse> {
        Ok(Response::new(ListMetricDescriptorsResponse { descriptors: convert::metrics::descriptors() }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<ListPodSandboxMetricsRequest>,
    ) -> Answer<ListPodSandboxMetricsResponse> {
        let pod_metrics = metrics::of_pods(&self.runtime).await?;
        Ok(Response::new(ListPodSandboxMetricsResponse { pod_metrics }))
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        let metrics = metrics::of_pods(&self.runtime).await?;
        Ok(list_stream::stream(metrics, |pod_sandbox_metrics| StreamPodSandboxMetricsResponse { pod_sandbox_metrics }))
    }

    async fn get_container_events(&self, _: Request<GetEventsRequest>) -> Answer<Self::GetContainerEventsStream> {
        Ok(events::stream(&self.runtime))
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
