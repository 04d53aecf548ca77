//! The RPCs of CRI's RuntimeService: each converts its request, calls `runtime`, and converts the result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use cri_api::v1::runtime_service_server::RuntimeService;
use cri_api::v1::*;
use tonic::{Request, Response, Status};

use super::held_body::HeldByBody;
use super::list_stream::Chunks;
use super::{
    RpcResult, caller_of, events, list_stream, log_warnings, metrics, record_container_id, record_new_container,
    record_new_pod, record_pod_id, run_blocking, run_detached, stats, status, unimplemented_rpc, verbose, version,
};
use crate::convert;
use crate::convert::container::id;
use crate::runtime::{ExecOutput, Runtime};
use crate::stream_server::{Request as Stream, StreamServer};

const CHECKPOINTS: &str = "crisp cannot checkpoint or restore containers";

#[derive(Debug)]
pub(crate) struct RuntimeApi {
    runtime: Arc<Runtime>,
    streaming: Arc<StreamServer>,
}

impl RuntimeApi {
    pub(crate) fn new(runtime: Arc<Runtime>, streaming: Arc<StreamServer>) -> Self {
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

    async fn version(&self, _: Request<VersionRequest>) -> RpcResult<VersionResponse> {
        Ok(Response::new(version::version()))
    }

    async fn status(&self, request: Request<StatusRequest>) -> RpcResult<StatusResponse> {
        let StatusRequest { verbose: wanted } = request.into_inner();
        let runtime = Arc::clone(&self.runtime);
        let info = match wanted {
            true => run_blocking(move || verbose(true, || runtime.info())).await?,
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

    async fn runtime_config(&self, _: Request<RuntimeConfigRequest>) -> RpcResult<RuntimeConfigResponse> {
        Ok(Response::new(version::runtime_config(self.runtime.config().cgroup.driver)))
    }

    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> RpcResult<UpdateRuntimeConfigResponse> {
        let UpdateRuntimeConfigRequest { runtime_config } = request.into_inner();
        let ranges = runtime_config.and_then(|config| config.network_config).map(|network| network.pod_cidr);
        if let Some(ranges) = ranges.filter(|ranges| !ranges.is_empty()) {
            let runtime = Arc::clone(&self.runtime);
            run_detached(async move { runtime.set_pod_cidr(ranges).await }).await?;
        }
        Ok(Response::new(UpdateRuntimeConfigResponse {}))
    }

    async fn run_pod_sandbox(&self, request: Request<RunPodSandboxRequest>) -> RpcResult<RunPodSandboxResponse> {
        let settings = self.runtime.settings();
        let annotation = settings.resources.annotation.as_ref();
        let request = request.into_inner();
        record_new_pod(request.config.as_ref().and_then(|config| config.metadata.as_ref()));
        let (spec, warnings) = convert::pod::run(request, annotation).map_err(status::of)?;
        log_warnings(&warnings);
        let runtime = Arc::clone(&self.runtime);
        let pod = run_detached(async move { runtime.run_pod(spec).await }).await?;
        record_pod_id(pod.as_str());
        Ok(Response::new(RunPodSandboxResponse { pod_sandbox_id: pod.into() }))
    }

    async fn stop_pod_sandbox(&self, request: Request<StopPodSandboxRequest>) -> RpcResult<StopPodSandboxResponse> {
        let StopPodSandboxRequest { pod_sandbox_id } = request.into_inner();
        let pod = id("pod_sandbox_id", pod_sandbox_id).map_err(status::of)?;
        self.runtime.record_pod_names(&pod);
        let runtime = Arc::clone(&self.runtime);
        run_detached(async move { runtime.stop_pod(&pod).await }).await?;
        Ok(Response::new(StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> RpcResult<RemovePodSandboxResponse> {
        let RemovePodSandboxRequest { pod_sandbox_id } = request.into_inner();
        let pod = id("pod_sandbox_id", pod_sandbox_id).map_err(status::of)?;
        self.runtime.record_pod_names(&pod);
        let runtime = Arc::clone(&self.runtime);
        run_detached(async move { runtime.remove_pod(&pod).await }).await?;
        Ok(Response::new(RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> RpcResult<PodSandboxStatusResponse> {
        let PodSandboxStatusRequest { pod_sandbox_id, verbose: wanted } = request.into_inner();
        let text = id("pod_sandbox_id", pod_sandbox_id).map_err(status::of)?;
        self.runtime.record_pod_names(&text);
        // A kubelet with event-based PLEG that gets a timestamp here uses `containers_statuses`
        // instead of its own lists, without their sandbox IDs, and would start each init container
        // again and again. containerd and CRI-O send none either.
        let timestamp = if wanted { convert::status::nanos(SystemTime::now()) } else { 0 };
        let pod = self.runtime.pod(&text).map_err(status::of)?;
        let status = Some(convert::status::pod(&pod));
        let containers_statuses = convert::event::statuses(&self.runtime.containers_now(&pod.id));
        let info = match wanted {
            true => {
                let runtime = Arc::clone(&self.runtime);
                run_blocking(move || verbose(true, || runtime.pod_info(&pod))).await?
            }
            false => BTreeMap::new(),
        };
        Ok(Response::new(PodSandboxStatusResponse { status, info, containers_statuses, timestamp }))
    }

    async fn list_pod_sandbox(&self, request: Request<ListPodSandboxRequest>) -> RpcResult<ListPodSandboxResponse> {
        let ListPodSandboxRequest { filter } = request.into_inner();
        Ok(Response::new(ListPodSandboxResponse { items: self.pods_like(filter)? }))
    }

    async fn create_container(&self, request: Request<CreateContainerRequest>) -> RpcResult<CreateContainerResponse> {
        let request = request.into_inner();
        record_new_container(&self.runtime, &request);
        let create = convert::container::create(request).map_err(status::of)?;
        let convert::container::Create { pod, spec, repeated, warnings } = create;
        log_warnings(&warnings);
        let runtime = Arc::clone(&self.runtime);
        let create = Box::pin(async move { runtime.create(&pod, spec, repeated).await });
        let container = run_detached(create).await?;
        record_container_id(container.as_str());
        Ok(Response::new(CreateContainerResponse { container_id: container.into() }))
    }

    async fn start_container(&self, request: Request<StartContainerRequest>) -> RpcResult<StartContainerResponse> {
        let StartContainerRequest { container_id } = request.into_inner();
        let container = id("container_id", container_id).map_err(status::of)?;
        self.runtime.record_container_names(&container);
        let runtime = Arc::clone(&self.runtime);
        run_detached(async move { runtime.start(&container).await }).await?;
        Ok(Response::new(StartContainerResponse {}))
    }

    async fn stop_container(&self, request: Request<StopContainerRequest>) -> RpcResult<StopContainerResponse> {
        let (container, grace) = convert::container::stop(request.into_inner()).map_err(status::of)?;
        self.runtime.record_container_names(&container);
        let runtime = Arc::clone(&self.runtime);
        run_detached(async move { runtime.stop(&container, grace).await }).await?;
        Ok(Response::new(StopContainerResponse {}))
    }

    async fn remove_container(&self, request: Request<RemoveContainerRequest>) -> RpcResult<RemoveContainerResponse> {
        let RemoveContainerRequest { container_id } = request.into_inner();
        let container = id("container_id", container_id).map_err(status::of)?;
        self.runtime.record_container_names(&container);
        let runtime = Arc::clone(&self.runtime);
        run_detached(async move { runtime.remove(&container).await }).await?;
        Ok(Response::new(RemoveContainerResponse {}))
    }

    async fn list_containers(&self, request: Request<ListContainersRequest>) -> RpcResult<ListContainersResponse> {
        let ListContainersRequest { filter } = request.into_inner();
        Ok(Response::new(ListContainersResponse { containers: self.containers_like(filter)? }))
    }

    async fn container_status(&self, request: Request<ContainerStatusRequest>) -> RpcResult<ContainerStatusResponse> {
        let ContainerStatusRequest { container_id, verbose: wanted } = request.into_inner();
        let text = id("container_id", container_id).map_err(status::of)?;
        self.runtime.record_container_names(&text);
        let (container, limits) = self.runtime.container_snapshot(&text).map_err(status::of)?;
        let status = Some(convert::status::container(&container, limits.as_ref()));
        let info = match wanted {
            true => {
                let runtime = Arc::clone(&self.runtime);
                run_blocking(move || verbose(true, || runtime.container_info(&container, limits.as_ref()))).await?
            }
            false => BTreeMap::new(),
        };
        Ok(Response::new(ContainerStatusResponse { status, info }))
    }

    async fn reopen_container_log(
        &self,
        request: Request<ReopenContainerLogRequest>,
    ) -> RpcResult<ReopenContainerLogResponse> {
        let ReopenContainerLogRequest { container_id } = request.into_inner();
        let container = id("container_id", container_id).map_err(status::of)?;
        self.runtime.record_container_names(&container);
        let runtime = Arc::clone(&self.runtime);
        run_detached(async move { runtime.reopen_log(&container).await }).await?;
        Ok(Response::new(ReopenContainerLogResponse {}))
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> RpcResult<ExecSyncResponse> {
        let exec = convert::container::exec(request.into_inner()).map_err(status::of)?;
        let convert::container::Exec { container, command, timeout } = exec;
        self.runtime.record_container_names(&container);
        // Not detached: a command is killed when its client disconnects. Boxed, because it contains
        // the buffers of the output.
        let output = Box::pin(self.runtime.exec_sync(&container, command, timeout)).await.map_err(status::of)?;
        let ExecOutput { stdout, stderr, code, share } = output;
        let mut response = Response::new(ExecSyncResponse { stdout, stderr, exit_code: code });
        response.extensions_mut().insert(HeldByBody::new(share));
        Ok(response)
    }

    async fn exec(&self, request: Request<ExecRequest>) -> RpcResult<ExecResponse> {
        let (container, command, wants) = convert::stream::exec(request.into_inner()).map_err(status::of)?;
        self.runtime.record_container_names(&container);
        let record = self.runtime.running(&container).map_err(status::of)?;
        let (pod, container) = (record.pod.clone(), record.id.clone());
        let url = self.streaming.url(Stream::Exec { pod, container, command, wants });
        Ok(Response::new(ExecResponse { url }))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> RpcResult<AttachResponse> {
        let (container, wants) = convert::stream::attach(request.into_inner()).map_err(status::of)?;
        self.runtime.record_container_names(&container);
        let record = self.runtime.attachable(&container).map_err(status::of)?;
        let (pod, container) = (record.pod.clone(), record.id.clone());
        let url = self.streaming.url(Stream::Attach { pod, container, wants });
        Ok(Response::new(AttachResponse { url }))
    }

    async fn port_forward(&self, request: Request<PortForwardRequest>) -> RpcResult<PortForwardResponse> {
        let (pod, ports) = convert::stream::port_forward(request.into_inner()).map_err(status::of)?;
        self.runtime.record_pod_names(&pod);
        let pod = self.runtime.ready(&pod).map_err(status::of)?;
        let url = self.streaming.url(Stream::PortForward { pod, ports });
        Ok(Response::new(PortForwardResponse { url }))
    }

    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> RpcResult<UpdateContainerResourcesResponse> {
        let caller = caller_of(&request);
        let (container, asked, warnings) = convert::resources::update(request.into_inner()).map_err(status::of)?;
        self.runtime.record_container_names(&container);
        log_warnings(&warnings);
        let runtime = Arc::clone(&self.runtime);
        run_detached(async move { runtime.update(&container, asked, caller).await }).await?;
        Ok(Response::new(UpdateContainerResourcesResponse {}))
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<UpdatePodSandboxResourcesRequest>,
    ) -> RpcResult<UpdatePodSandboxResourcesResponse> {
        let caller = caller_of(&request);
        let (pod, asked, warnings) = convert::resources::update_pod(request.into_inner()).map_err(status::of)?;
        self.runtime.record_pod_names(&pod);
        log_warnings(&warnings);
        let runtime = Arc::clone(&self.runtime);
        run_detached(async move { runtime.update_pod(&pod, asked, caller).await }).await?;
        Ok(Response::new(UpdatePodSandboxResourcesResponse {}))
    }

    async fn stream_pod_sandboxes(
        &self,
        request: Request<StreamPodSandboxesRequest>,
    ) -> RpcResult<Self::StreamPodSandboxesStream> {
        let StreamPodSandboxesRequest { filter } = request.into_inner();
        let pods = self.pods_like(filter)?;
        Ok(list_stream::stream(pods, |pod_sandboxes| StreamPodSandboxesResponse { pod_sandboxes }))
    }

    async fn stream_containers(
        &self,
        request: Request<StreamContainersRequest>,
    ) -> RpcResult<Self::StreamContainersStream> {
        let StreamContainersRequest { filter } = request.into_inner();
        let containers = self.containers_like(filter)?;
        Ok(list_stream::stream(containers, |containers| StreamContainersResponse { containers }))
    }

    async fn container_stats(&self, request: Request<ContainerStatsRequest>) -> RpcResult<ContainerStatsResponse> {
        let ContainerStatsRequest { container_id } = request.into_inner();
        let container = id("container_id", container_id).map_err(status::of)?;
        self.runtime.record_container_names(&container);
        let stats = stats::of_container(&self.runtime, container).await?;
        Ok(Response::new(ContainerStatsResponse { stats: Some(stats) }))
    }

    async fn list_container_stats(
        &self,
        request: Request<ListContainerStatsRequest>,
    ) -> RpcResult<ListContainerStatsResponse> {
        let ListContainerStatsRequest { filter } = request.into_inner();
        let stats = stats::of_containers(&self.runtime, filter).await?;
        Ok(Response::new(ListContainerStatsResponse { stats }))
    }

    async fn stream_container_stats(
        &self,
        request: Request<StreamContainerStatsRequest>,
    ) -> RpcResult<Self::StreamContainerStatsStream> {
        let StreamContainerStatsRequest { filter } = request.into_inner();
        let stats = stats::of_containers(&self.runtime, filter).await?;
        Ok(list_stream::stream(stats, |container_stats| StreamContainerStatsResponse { container_stats }))
    }

    async fn pod_sandbox_stats(&self, request: Request<PodSandboxStatsRequest>) -> RpcResult<PodSandboxStatsResponse> {
        let PodSandboxStatsRequest { pod_sandbox_id } = request.into_inner();
        let pod = id("pod_sandbox_id", pod_sandbox_id).map_err(status::of)?;
        self.runtime.record_pod_names(&pod);
        let stats = stats::of_pod(&self.runtime, pod).await?;
        Ok(Response::new(PodSandboxStatsResponse { stats: Some(stats) }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<ListPodSandboxStatsRequest>,
    ) -> RpcResult<ListPodSandboxStatsResponse> {
        let ListPodSandboxStatsRequest { filter } = request.into_inner();
        let stats = stats::of_pods(&self.runtime, filter).await?;
        Ok(Response::new(ListPodSandboxStatsResponse { stats }))
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<StreamPodSandboxStatsRequest>,
    ) -> RpcResult<Self::StreamPodSandboxStatsStream> {
        let StreamPodSandboxStatsRequest { filter } = request.into_inner();
        let stats = stats::of_pods(&self.runtime, filter).await?;
        Ok(list_stream::stream(stats, |pod_sandbox_stats| StreamPodSandboxStatsResponse { pod_sandbox_stats }))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<ListMetricDescriptorsRequest>,
    ) -> RpcResult<ListMetricDescriptorsResponse> {
        Ok(Response::new(ListMetricDescriptorsResponse { descriptors: convert::metrics::descriptors() }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<ListPodSandboxMetricsRequest>,
    ) -> RpcResult<ListPodSandboxMetricsResponse> {
        let pod_metrics = metrics::of_pods(&self.runtime).await?;
        Ok(Response::new(ListPodSandboxMetricsResponse { pod_metrics }))
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<StreamPodSandboxMetricsRequest>,
    ) -> RpcResult<Self::StreamPodSandboxMetricsStream> {
        let metrics = metrics::of_pods(&self.runtime).await?;
        Ok(list_stream::stream(metrics, |pod_sandbox_metrics| StreamPodSandboxMetricsResponse { pod_sandbox_metrics }))
    }

    async fn get_container_events(&self, _: Request<GetEventsRequest>) -> RpcResult<Self::GetContainerEventsStream> {
        Ok(events::stream(&self.runtime))
    }

    async fn checkpoint_container(
        &self,
        _: Request<CheckpointContainerRequest>,
    ) -> RpcResult<CheckpointContainerResponse> {
        unimplemented_rpc("CheckpointContainer", CHECKPOINTS)
    }

    async fn checkpoint_pod(&self, _: Request<CheckpointPodRequest>) -> RpcResult<CheckpointPodResponse> {
        unimplemented_rpc("CheckpointPod", CHECKPOINTS)
    }

    async fn restore_pod(&self, _: Request<RestorePodRequest>) -> RpcResult<RestorePodResponse> {
        unimplemented_rpc("RestorePod", CHECKPOINTS)
    }
}
