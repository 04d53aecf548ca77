//! A runtime under test: its socket, processes, pods and figures.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cri_api::v1;
use cri_api::v1::image_service_client::ImageServiceClient;
use cri_api::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::{Channel, Endpoint};

use super::BenchError;
use super::args::NamedSocket;
use super::directories::{Directory, directories};
use super::processes::RuntimeProcesses;
use super::report::results::{Figures, Unit};
use super::specs::Specs;

pub(super) type Client = RuntimeServiceClient<Channel>;

#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) name: String,
    pub(super) socket: PathBuf,
    pub(super) directories: Vec<Directory>,
    /// Whether the benchmark and the daemon run from the same file.
    pub(super) shares_program: bool,
    /// Name and version that the runtime reports.
    pub(super) version: String,
    pub(super) client: Client,
    pub(super) images: ImageServiceClient<Channel>,
    pub(super) family: RuntimeProcesses,
    pub(super) shape: Specs,
    pub(super) figures: Figures,
    /// Current pods with their containers.
    pub(super) pods: Vec<Pod>,
    /// Figures by number of pods.
    pub(super) growth: Vec<Step>,
}

/// A running pod.
#[derive(Debug, Clone, Default)]
pub(super) struct Pod {
    pub(super) id: String,
    pub(super) containers: Vec<String>,
}

/// Figures for a number of pods.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) pods: usize,
    pub(super) containers: usize,
    pub(super) figures: Figures,
}

pub(super) async fn connect(socket: &Path) -> Result<Channel, BenchError> {
    // Its error names the cause once; tonic's repeats it at each level.
    UnixStream::connect(socket).map_err(|source| BenchError::Socket { socket: socket.to_owned(), source })?;
    let failed = |source| BenchError::Connect { socket: socket.to_owned(), source };
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(failed)?;
    endpoint.connect().await.map_err(failed)
}

impl Runtime {
    pub(super) async fn connect(named: &NamedSocket, shape: Specs) -> Result<Self, BenchError> {
        let NamedSocket { name, socket } = named.clone();
        let channel = connect(&socket).await?;
        let parent = Some(shape.cgroup_parent.as_str()).filter(|path| path.starts_with('/'));
        let family = RuntimeProcesses::behind(&socket, parent)
            .map_err(|source| BenchError::Daemon { socket: socket.clone(), source })?;
        let shares_program =
            family.shares_program().map_err(|source| BenchError::Daemon { socket: socket.clone(), source })?;
        let mut client = RuntimeServiceClient::new(channel.clone());
        let asked = client.version(v1::VersionRequest::default()).await;
        let answer =
            asked.map_err(|source| BenchError::Version { socket: socket.clone(), source: Box::new(source) })?;
        let v1::VersionResponse { runtime_name, runtime_version, .. } = answer.into_inner();
        let mut images = ImageServiceClient::new(channel);
        let directories = known_directories(&mut client, &mut images, &family).await;
        Ok(Self {
            name,
            socket,
            directories,
            shares_program,
            version: format!("{runtime_name} {runtime_version}"),
            client,
            images,
            family,
            shape,
            figures: Figures::default(),
            pods: Vec::new(),
            growth: Vec::new(),
        })
    }

    pub(super) fn ids(&self) -> Vec<&str> {
        self.pods.iter().flat_map(|pod| std::iter::once(&pod.id).chain(&pod.containers)).map(String::as_str).collect()
    }

    /// Returns the IDs of all containers.
    pub(super) fn containers(&self) -> Vec<String> {
        self.pods.iter().flat_map(|pod| pod.containers.iter().cloned()).collect()
    }

    /// Returns the CPU time used for this runtime so far.
    pub(super) fn cpu(&self) -> std::io::Result<Duration> {
        self.family.all_cpu(&self.ids())
    }

    /// Records the CPU time per operation of `count` operations since `before`.
    pub(super) fn note_cpu(&mut self, name: &str, before: std::io::Result<Duration>, count: u32) {
        let each = |now: Duration, before| now.saturating_sub(before).as_secs_f64() * 1000.0 / f64::from(count.max(1));
        let used = before.and_then(|before| Ok(each(self.cpu()?, before)));
        self.figures.note(name, Unit::Ms, used);
    }

    /// Removes all pods, and logs those that cannot be removed.
    pub(super) async fn clear(&mut self) {
        for pod in std::mem::take(&mut self.pods) {
            if let Err(status) = remove(&mut self.client, &pod.id).await {
                tracing::warn!(runtime = self.name, pod = pod.id, %status, "cannot remove a pod of the benchmark; remove it with crictl");
            }
        }
    }
}

/// Queries a runtime for its directories; one that does not answer has none.
async fn known_directories(
    client: &mut Client,
    images: &mut ImageServiceClient<Channel>,
    family: &RuntimeProcesses,
) -> Vec<Directory> {
    let info = images.image_fs_info(v1::ImageFsInfoRequest {}).await.ok().map(tonic::Response::into_inner);
    let status = client.status(v1::StatusRequest { verbose: true }).await;
    let status = status.map(|status| status.into_inner().info).unwrap_or_default();
    directories(info, &status.into_iter().collect(), &family.mountinfo().unwrap_or_default())
}

/// Stops and removes a pod with its containers.
pub(super) async fn remove(client: &mut Client, pod: &str) -> Result<(), tonic::Status> {
    client.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: pod.to_owned() }).await?;
    client.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: pod.to_owned() }).await?;
    Ok(())
}

/// Calls `turn` for each runtime in every round, in alternating order.
pub(super) async fn in_turns(runtimes: &mut [Runtime], rounds: u32, mut turn: impl AsyncFnMut(&mut Runtime, u32)) {
    for round in 0..rounds {
        for index in order(round, runtimes.len()) {
            turn(&mut runtimes[index], round).await;
        }
    }
}

/// Returns the order of a round: no runtime is always first, or always after the same one.
fn order(round: u32, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if !round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_alternates_between_rounds() {
        assert_eq!(order(0, 3), [0, 1, 2]);
        assert_eq!(order(1, 3), [2, 1, 0]);
        assert_eq!(order(2, 1), [0]);
    }
}
