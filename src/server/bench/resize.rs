//! `crisp bench resize`: how long changing and looking at running containers takes, alone and in a storm of changes.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use tonic::transport::Channel;
use tonic::{Response, Status};
use wire::v1;
use wire::v1::runtime_service_client::RuntimeServiceClient;

use super::figures::Figures;
use super::parent::Parent;
use super::storm::Storm;
use super::{BenchError, Measured, bare, connect, step};

/// Containers of one pod.
const EACH: usize = 5;
/// Calls of each kind, one after another, in each round.
const CALLS: usize = 20;
const MIB: i64 = 1 << 20;

/// What is measured, and how often.
#[derive(Debug, clap::Args)]
pub struct Plan {
    /// The sockets of the runtimes; others are compared with the first.
    #[arg(required = true)]
    sockets: Vec<PathBuf>,
    /// An image that all of them have.
    #[arg(long)]
    image: String,
    /// How many containers each runtime holds meanwhile.
    #[arg(long, default_value_t = 50)]
    containers: usize,
    /// How often each runtime has its turn.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// How many changes a storm brings in a second; 0 for no storm.
    #[arg(long, default_value_t = 1000)]
    storm: u32,
    /// How long a storm lasts, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

struct Runtime {
    socket: PathBuf,
    client: RuntimeServiceClient<Channel>,
    pods: Vec<String>,
    containers: Vec<String>,
    figures: Figures,
}

pub(super) async fn measure(plan: Plan) -> Result<Measured, BenchError> {
    let mut runtimes = Vec::new();
    for socket in &plan.sockets {
        let client = RuntimeServiceClient::new(connect(socket).await?);
        let (pods, containers) = (Vec::new(), Vec::new());
        runtimes.push(Runtime { socket: socket.clone(), client, pods, containers, figures: Figures::default() });
    }
    let parent = Parent::make().map_err(BenchError::Bare)?;
    let measured = run(&plan, &parent, &mut runtimes).await;
    for runtime in &mut runtimes {
        runtime.remove_all().await;
    }
    measured?;
    Ok(runtimes.into_iter().map(|runtime| (runtime.socket, runtime.figures)).collect())
}

async fn run(plan: &Plan, parent: &Parent, runtimes: &mut [Runtime]) -> Result<(), BenchError> {
    for runtime in runtimes.iter_mut() {
        while runtime.containers.len() < plan.containers {
            Box::pin(runtime.add_pod(&plan.image, parent, plan.containers)).await?;
        }
    }
    for round in 0..plan.rounds {
        for (index, runtime) in runtimes.iter_mut().enumerate() {
            Box::pin(runtime.change(round)).await?;
            Box::pin(runtime.look()).await?;
            if index == 0 {
                bare::measure(parent, &mut runtime.figures, CALLS).map_err(BenchError::Bare)?;
            }
        }
    }
    for runtime in runtimes.iter_mut().filter(|_| plan.storm > 0) {
        Box::pin(runtime.weather(plan)).await?;
    }
    Ok(())
}

/// Limits as the kubelet sends them at each change, all of them.
pub(super) fn limits(millis: i64, mib: i64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: millis * 100,
        cpu_shares: millis * 1024 / 1000,
        memory_limit_in_bytes: mib * MIB,
        ..Default::default()
    }
}

pub(super) fn update(id: &str, limits: v1::LinuxContainerResources) -> v1::UpdateContainerResourcesRequest {
    v1::UpdateContainerResourcesRequest { container_id: id.to_owned(), linux: Some(limits), ..Default::default() }
}

/// Times a call, or gives up.
macro_rules! timed {
    ($runtime:ident, $name:expr, $call:ident, $request:expr) => {{
        let request = $request;
        let begin = Instant::now();
        let answer: Result<Response<_>, Status> = $runtime.client.$call(request).await;
        $runtime.figures.add_time($name, begin.elapsed());
        answer.map_err(step(stringify!($call), &$runtime.socket))?.into_inner()
    }};
}

impl Runtime {
    async fn add_pod(&mut self, image: &str, parent: &Parent, most: usize) -> Result<(), BenchError> {
        let name = format!("bench-{}-{}", std::process::id(), self.pods.len());
        let metadata =
            v1::PodSandboxMetadata { name: name.clone(), uid: name, namespace: "bench".to_owned(), attempt: 0 };
        // The host's network, so that no runtime needs plugins for this.
        let options = v1::NamespaceOption { network: v1::NamespaceMode::Node.into(), ..Default::default() };
        let security =
            v1::LinuxSandboxSecurityContext { namespace_options: Some(options.clone()), ..Default::default() };
        let linux = v1::LinuxPodSandboxConfig {
            cgroup_parent: parent.path().to_owned(),
            security_context: Some(security),
            ..Default::default()
        };
        let pod = v1::PodSandboxConfig { metadata: Some(metadata), linux: Some(linux), ..Default::default() };
        let run = v1::RunPodSandboxRequest { config: Some(pod.clone()), ..Default::default() };
        let answer = self.client.run_pod_sandbox(run).await.map_err(step("RunPodSandbox", &self.socket))?;
        let pod_sandbox_id = answer.into_inner().pod_sandbox_id;
        self.pods.push(pod_sandbox_id.clone());
        for name in 0..EACH.min(most - self.containers.len()) {
            let namespace_options = Some(options.clone());
            let security = v1::LinuxContainerSecurityContext { namespace_options, ..Default::default() };
            let linux = v1::LinuxContainerConfig { resources: Some(limits(200, 64)), security_context: Some(security) };
            let config = v1::ContainerConfig {
                metadata: Some(v1::ContainerMetadata { name: format!("c{name}"), attempt: 0 }),
                image: Some(v1::ImageSpec { image: image.to_owned(), ..Default::default() }),
                command: vec!["sleep".to_owned(), "100000".to_owned()],
                linux: Some(linux),
                ..Default::default()
            };
            let create = v1::CreateContainerRequest {
                pod_sandbox_id: pod_sandbox_id.clone(),
                config: Some(config),
                sandbox_config: Some(pod.clone()),
            };
            let made = self.client.create_container(create).await.map_err(step("CreateContainer", &self.socket))?;
            let container_id = made.into_inner().container_id;
            self.containers.push(container_id.clone());
            let start = v1::StartContainerRequest { container_id };
            self.client.start_container(start).await.map_err(step("StartContainer", &self.socket))?;
        }
        Ok(())
    }

    /// Two changes as the kubelet makes them: memory, then CPU.
    async fn change(&mut self, round: u32) -> Result<(), BenchError> {
        let containers: Vec<String> = self.containers.iter().take(CALLS).cloned().collect();
        let (old, new) = if round.is_multiple_of(2) { (200, 300) } else { (300, 200) };
        let mib = if round.is_multiple_of(2) { 96 } else { 64 };
        for id in &containers {
            timed!(self, "update memory ms", update_container_resources, update(id, limits(old, mib)));
            timed!(self, "update cpu ms", update_container_resources, update(id, limits(new, mib)));
            timed!(self, "update nothing ms", update_container_resources, update(id, limits(new, mib)));
        }
        Ok(())
    }

    async fn look(&mut self) -> Result<(), BenchError> {
        for call in 0..CALLS {
            timed!(self, "Version ms", version, v1::VersionRequest::default());
            self.look_at(call, "ContainerStatus ms", "ListContainers ms").await?;
        }
        for _ in 0..CALLS / 4 {
            timed!(self, "ListContainerStats ms", list_container_stats, v1::ListContainerStatsRequest::default());
        }
        Ok(())
    }

    async fn look_at(&mut self, call: usize, status: &'static str, list: &'static str) -> Result<(), BenchError> {
        let container_id = self.containers[call % self.containers.len()].clone();
        timed!(self, status, container_status, v1::ContainerStatusRequest { container_id, verbose: false });
        timed!(self, list, list_containers, v1::ListContainersRequest::default());
        Ok(())
    }

    /// The same looks before and during a storm.
    async fn weather(&mut self, plan: &Plan) -> Result<(), BenchError> {
        let span = Duration::from_secs(plan.seconds);
        self.look_for(span, "calm: ContainerStatus ms", "calm: ListContainers ms").await?;
        let storm = Storm { socket: self.socket.clone(), containers: self.containers.clone(), rate: plan.storm, span };
        // On a thread of its own: what it costs to ask must not slow down those who look.
        let storm = thread::spawn(move || storm.blow());
        let looked = self.look_for(span, "storm: ContainerStatus ms", "storm: ListContainers ms").await;
        let blown = storm.join().map_err(|_| BenchError::Storm(self.socket.clone()))??;
        looked?;
        self.figures.add("storm: updates a second", blown);
        Ok(())
    }

    async fn look_for(&mut self, span: Duration, status: &'static str, list: &'static str) -> Result<(), BenchError> {
        let begin = Instant::now();
        for call in 0.. {
            if begin.elapsed() >= span {
                break;
            }
            self.look_at(call, status, list).await?;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    async fn remove_all(&mut self) {
        for pod_sandbox_id in std::mem::take(&mut self.pods) {
            let stop = v1::StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
            let remove = v1::RemovePodSandboxRequest { pod_sandbox_id };
            let gone = match self.client.stop_pod_sandbox(stop).await {
                Ok(_) => self.client.remove_pod_sandbox(remove).await.map(drop),
                Err(status) => Err(status),
            };
            if let Err(status) = gone {
                tracing::warn!(socket = %self.socket.display(), %status, "a pod stays behind");
            }
        }
    }
}
