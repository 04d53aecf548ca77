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
use super::processes::RuntimeProcesses;
use super::report::results::{Figures, Unit};
use super::specs::Specs;

pub(super) type Client = RuntimeServiceClient<Channel>;

#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) name: String,
    pub(super) socket: PathBuf,
    /// Type and path of the file system with its images, if it reports it.
    pub(super) filesystem: Option<String>,
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
        let filesystem = image_filesystem(&mut images).await;
        Ok(Self {
            name,
            socket,
            filesystem,
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

/// Returns type and mount point of the file system with the runtime's images.
async fn image_filesystem(images: &mut ImageServiceClient<Channel>) -> Option<String> {
    let answer = images.image_fs_info(v1::ImageFsInfoRequest {}).await.ok()?.into_inner();
    let path = PathBuf::from(answer.image_filesystems.into_iter().next()?.fs_id?.mountpoint);
    filesystem(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, &path)
}

/// Returns type and mount point of the mount with the longest path that contains `path`.
fn filesystem(mountinfo: &str, path: &Path) -> Option<String> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        Some((Path::new(mount.split(' ').nth(4)?), source.split(' ').next()?))
    });
    let containing = mounts.filter(|(point, _)| path.starts_with(point));
    let (point, kind) = containing.max_by_key(|(point, _)| point.as_os_str().len())?;
    Some(format!("{kind} {}", point.display()))
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
    fn the_file_system_is_that_of_the_innermost_mount() {
        let text = "22 1 254:1 / / rw shared:1 - ext4 /dev/vda1 rw\n30 22 0:25 / /var/lib rw - tmpfs tmpfs rw\n";
        assert_eq!(filesystem(text, Path::new("/var/lib/crisp")).as_deref(), Some("tmpfs /var/lib"));
        assert_eq!(filesystem(text, Path::new("/var/library")).as_deref(), Some("ext4 /"));
        assert_eq!(filesystem("", Path::new("/")), None);
    }

    #[test]
    fn the_order_alternates_between_rounds() {
        assert_eq!(order(0, 3), [0, 1, 2]);
        assert_eq!(order(1, 3), [2, 1, 0]);
        assert_eq!(order(2, 1), [0]);
    }
}
