//! `crisp bench`: how long the life of a pod takes, with any CRI runtime.
//!
//! One pod with one container after another, each step timed. With several sockets the rounds go in turns, so that all
//! meet the same machine, and what is printed beside the times is their ratio to the first: on a shared machine only
//! that means something.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tonic::transport::{Channel, Endpoint};
use wire::v1;
use wire::v1::runtime_service_client::RuntimeServiceClient;

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

/// A step could not be measured, since it failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("starting")]
    Start(#[source] io::Error),
    #[error("connecting to {}", socket.display())]
    Connect { socket: PathBuf, source: tonic::transport::Error },
    #[error("{step} at {}", socket.display())]
    Step { step: &'static str, socket: PathBuf, source: Box<tonic::Status> },
    #[error("printing")]
    Print(#[source] io::Error),
}

/// The steps in the order of a pod's life.
const STEPS: [&str; 9] = [
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "ContainerStatus",
    "ExecSync",
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
];

/// Times by step.
type Times = BTreeMap<&'static str, Vec<Duration>>;

struct Runtime {
    socket: PathBuf,
    client: RuntimeServiceClient<Channel>,
    times: Times,
}

/// Measures, and prints a table.
pub fn bench(plan: Plan) -> Result<(), BenchError> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::Start)?;
    tokio.block_on(async {
        let mut runtimes = Vec::new();
        for socket in plan.sockets {
            let failed = |source| BenchError::Connect { socket: socket.clone(), source };
            let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(failed)?;
            let client = RuntimeServiceClient::new(endpoint.connect().await.map_err(failed)?);
            runtimes.push(Runtime { socket, client, times: Times::new() });
        }
        for round in 0..plan.rounds {
            for runtime in &mut runtimes {
                Box::pin(runtime.live(round, &plan.image)).await?;
            }
        }
        print(&runtimes).map_err(BenchError::Print)
    })
}

/// Times one call, or gives up.
macro_rules! timed {
    ($runtime:ident, $step:literal, $call:ident, $request:expr) => {{
        let begin = Instant::now();
        let answer = $runtime.client.$call($request).await;
        $runtime.times.entry($step).or_default().push(begin.elapsed());
        let failed =
            |source| BenchError::Step { step: $step, socket: $runtime.socket.clone(), source: Box::new(source) };
        answer.map_err(failed)?.into_inner()
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

/// The time below which `percent` of `times` lie.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * percent / 100).copied().unwrap_or_default()
}

fn print(runtimes: &[Runtime]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let millis = |time: Duration| time.as_secs_f64() * 1000.0;
    for runtime in runtimes {
        writeln!(out, "{}", runtime.socket.display())?;
        writeln!(out, "{:<18}{:>10}{:>10}{:>10}{:>10}", "", "p50 ms", "p90 ms", "p99 ms", "ratio")?;
        for step in STEPS {
            let Some(times) = runtime.times.get(step) else { continue };
            let [p50, p90, p99] = [50, 90, 99].map(|percent| millis(percentile(times, percent)));
            let first = runtimes.first().and_then(|first| first.times.get(step));
            let ratio = first.map_or(1.0, |first| p50 / millis(percentile(first, 50)));
            writeln!(out, "{step:<18}{p50:>10.2}{p90:>10.2}{p99:>10.2}{ratio:>10.2}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_times() {
        let times: Vec<Duration> = (1..=11).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 50), Duration::from_millis(6));
        assert_eq!(percentile(&times, 90), Duration::from_millis(10));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
