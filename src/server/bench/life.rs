//! `crisp bench life`: how long the steps in the life of a pod with one container take.

use std::path::PathBuf;
use std::time::Instant;

use tonic::transport::Channel;
use wire::v1;
use wire::v1::runtime_service_client::RuntimeServiceClient;

use super::figures::Figures;
use super::{BenchError, Measured, connect, step};

/// What is measured, and how often.
#[derive(Debug, clap::Args)]
pub struct Plan {
    /// The sockets of the runtimes; others are compared with the first.
    #[arg(required = true)]
    sockets: Vec<PathBuf>,
    /// An image that all of them have.
    #[arg(long)]
    image: String,
    /// How many pods each runtime makes.
    #[arg(long, default_value_t = 20)]
    rounds: u32,
}

struct Runtime {
    socket: PathBuf,
    client: RuntimeServiceClient<Channel>,
    figures: Figures,
}

pub(super) async fn measure(plan: Plan) -> Result<Measured, BenchError> {
    let mut runtimes = Vec::new();
    for socket in plan.sockets {
        let client = RuntimeServiceClient::new(connect(&socket).await?);
        runtimes.push(Runtime { socket, client, figures: Figures::default() });
    }
    for round in 0..plan.rounds {
        for runtime in &mut runtimes {
            Box::pin(runtime.live(round, &plan.image)).await?;
        }
    }
    Ok(runtimes.into_iter().map(|runtime| (runtime.socket, runtime.figures)).collect())
}

/// Times one call, or gives up.
macro_rules! timed {
    ($runtime:ident, $step:literal, $call:ident, $request:expr) => {{
        let begin = Instant::now();
        let answer = $runtime.client.$call($request).await;
        $runtime.figures.add_time(concat!($step, " ms"), begin.elapsed());
        answer.map_err(step($step, &$runtime.socket))?.into_inner()
    }};
}

impl Runtime {
    /// One pod with one container, from beginning to end.
    async fn live(&mut self, round: u32, image: &str) -> Result<(), BenchError> {
        let name = format!("bench-{}-{round}", std::process::id());
        let metadata =
            v1::PodSandboxMetadata { name: name.clone(), uid: name, namespace: "bench".to_owned(), attempt: 0 };
        let pod = v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
        let run = v1::RunPodSandboxRequest { config: Some(pod.clone()), ..Default::default() };
        let pod_sandbox_id = timed!(self, "RunPodSandbox", run_pod_sandbox, run).pod_sandbox_id;
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: image.to_owned(), ..Default::default() }),
            command: vec!["sleep".to_owned(), "1000".to_owned()],
            ..Default::default()
        };
        let create = v1::CreateContainerRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
            config: Some(config),
            sandbox_config: Some(pod),
        };
        let container_id = timed!(self, "CreateContainer", create_container, create).container_id;
        let id = || container_id.clone();
        timed!(self, "StartContainer", start_container, v1::StartContainerRequest { container_id: id() });
        let status = v1::ContainerStatusRequest { container_id: id(), verbose: false };
        timed!(self, "ContainerStatus", container_status, status);
        let exec = v1::ExecSyncRequest { container_id: id(), cmd: vec!["true".to_owned()], timeout: 10 };
        timed!(self, "ExecSync", exec_sync, exec);
        timed!(self, "StopContainer", stop_container, v1::StopContainerRequest { container_id: id(), timeout: 0 });
        timed!(self, "RemoveContainer", remove_container, v1::RemoveContainerRequest { container_id: id() });
        let stop = v1::StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
        timed!(self, "StopPodSandbox", stop_pod_sandbox, stop);
        timed!(self, "RemovePodSandbox", remove_pod_sandbox, v1::RemovePodSandboxRequest { pod_sandbox_id });
        Ok(())
    }
}
