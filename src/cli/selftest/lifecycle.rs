//! The steps in the life of a selftest's pod.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cgroup::{AppliedValues, Cgroup};
use cri_api::v1;
use model::resources::ObservedLimits;
use tonic::Status;

use super::super::cgroup_files::FilesError;
use super::super::client::Cri;
use super::super::verbose_info::{ContainerInfo, NotCrisp, PodInfo};
use super::super::{cgroup_files, units, verbose_info};
use super::cleanup::{NotRemoved, Watcher};
use super::run_id::{LABEL, RunId};
use super::{cleanup, image};

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum SelftestError {
    #[error("{}", .0.message())]
    Daemon(Box<Status>),
    #[error(transparent)]
    NotCrisp(#[from] NotCrisp),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("building the test pod's image from the crisp program")]
    Image(#[source] io::Error),
    #[error("creating the test pod's log directory {}", path.display())]
    Logs { path: PathBuf, source: io::Error },
    #[error("starting the process that removes the test pod if this command is killed")]
    Watcher(#[source] io::Error),
    #[error("reading the test pod's limits from the kernel")]
    Kernel(#[from] cgroup::ApplyError),
    #[error("{0}")]
    Wrong(String),
    #[error("the step with the test pod timed out after {} s; see the daemon's log", .0.as_secs())]
    Late(Duration),
    #[error(transparent)]
    Left(#[from] NotRemoved),
}

impl From<Status> for SelftestError {
    fn from(status: Status) -> Self {
        Self::Daemon(Box::new(status))
    }
}

/// Limits of a pod and its container.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct PodSize {
    /// Thousandths of a CPU.
    pub(in super::super) millis: u64,
    pub(in super::super) mib: u64,
}

impl PodSize {
    pub(in super::super) fn to_wire(self) -> v1::LinuxContainerResources {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        v1::LinuxContainerResources {
            cpu_period: signed(units::PERIOD),
            cpu_quota: signed(self.millis * units::PERIOD / 1000),
            cpu_shares: signed((self.millis * 1024 / 1000).max(2)),
            memory_limit_in_bytes: signed(self.mib << 20),
            ..Default::default()
        }
    }
}

/// A selftest: a pod with one container, image and logs.
pub(in super::super) struct Selftest {
    cri: Cri,
    run: RunId,
    state: PathBuf,
    watcher: Watcher,
    name: &'static str,
}

/// A created pod.
pub(in super::super) struct SelftestPod {
    pub(in super::super) id: String,
    config: v1::PodSandboxConfig,
    pub(in super::super) group: Cgroup,
}

/// A created container.
pub(in super::super) struct SelftestContainer {
    pub(in super::super) id: String,
    pub(in super::super) group: Cgroup,
}

impl Selftest {
    /// Begins a selftest whose pod has this name. `state` is the daemon's runtime state directory.
    pub(in super::super) async fn begin(
        cri: Cri,
        socket: &Path,
        state: &Path,
        name: &'static str,
    ) -> Result<Self, SelftestError> {
        cleanup::remove_dead_runs(&cri, state).await?;
        let run = RunId::own();
        let watcher = Watcher::start(socket, state, &run).map_err(SelftestError::Watcher)?;
        let selftest = Self { cri, run, state: state.to_owned(), watcher, name };
        let path = selftest.logs();
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(|source| SelftestError::Logs { path, source })?;
        Ok(selftest)
    }

    fn logs(&self) -> PathBuf {
        self.state.join(self.run.directory())
    }

    /// Imports the image into the daemon's store, and returns its size.
    pub(in super::super) async fn import(&self) -> Result<u64, SelftestError> {
        let name = self.run.image();
        let archive = tokio::task::spawn_blocking(move || image::archive(&name));
        let archive = archive.await.map_err(io::Error::other).and_then(|made| made).map_err(SelftestError::Image)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), archive.as_raw_fd());
        let ask = cri_api::admin::ImportRequest { path, name: String::new() };
        let mut messages = self.cri.admin().import(ask).await?.into_inner();
        while let Some(progress) = messages.message().await? {
            if progress.done {
                return Ok(progress.images.first().map_or(0, |image| image.size));
            }
        }
        Err(SelftestError::Wrong("the daemon closed the connection before the import was complete".to_owned()))
    }

    pub(in super::super) async fn run_pod(&self, size: PodSize) -> Result<SelftestPod, SelftestError> {
        let name = format!("{}-{}", self.name, self.run);
        let metadata = v1::PodSandboxMetadata {
            // A short name that users can find; the uid makes it unique among concurrent selftests.
            name: self.name.to_owned(),
            uid: name,
            namespace: "crisp".to_owned(),
            attempt: 0,
        };
        let linux = v1::LinuxPodSandboxConfig { resources: Some(size.to_wire()), ..Default::default() };
        let config = v1::PodSandboxConfig {
            metadata: Some(metadata),
            hostname: self.name.to_owned(),
            log_directory: self.logs().display().to_string(),
            labels: [(LABEL.to_owned(), self.run.to_string())].into(),
            linux: Some(linux),
            ..Default::default()
        };
        let ask = v1::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
        let mut runtime = self.cri.runtime();
        // Boxed: the future holds several copies of this large request.
        let id = Box::pin(runtime.run_pod_sandbox(ask)).await?.into_inner().pod_sandbox_id;
        let ask = v1::PodSandboxStatusRequest { pod_sandbox_id: id.clone(), verbose: true };
        let answer = self.cri.runtime().pod_sandbox_status(ask).await?.into_inner();
        let info: PodInfo = verbose_info::read(&answer.info)?;
        let group = cgroup_files::group(&cgroup_files::layout()?, &info.cgroup.path)?;
        Ok(SelftestPod { id, config, group })
    }

    /// Returns the pod's first address; None without a network.
    pub(in super::super) async fn address(&self, pod: &SelftestPod) -> Result<Option<String>, SelftestError> {
        let ask = v1::PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: false };
        let status = self.cri.runtime().pod_sandbox_status(ask).await?.into_inner().status;
        let ip = status.and_then(|status| status.network).map(|network| network.ip);
        Ok(ip.filter(|ip| !ip.is_empty()))
    }

    /// Creates a container that runs a subcommand of `crisp demo-workload`.
    pub(in super::super) async fn create(
        &self,
        pod: &SelftestPod,
        name: &str,
        word: &str,
        size: PodSize,
    ) -> Result<SelftestContainer, SelftestError> {
        let linux = v1::LinuxContainerConfig { resources: Some(size.to_wire()), security_context: None };
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: self.run.image(), ..Default::default() }),
            args: vec![word.to_owned()],
            log_path: format!("{name}.log"),
            linux: Some(linux),
            ..Default::default()
        };
        let ask = v1::CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        let mut runtime = self.cri.runtime();
        let id = Box::pin(runtime.create_container(ask)).await?.into_inner().container_id;
        let (_, info) = self.inspect(&id).await?;
        Ok(SelftestContainer { id, group: cgroup_files::group(&cgroup_files::layout()?, &info.cgroup)? })
    }

    pub(in super::super) async fn inspect(
        &self,
        id: &str,
    ) -> Result<(v1::ContainerStatus, ContainerInfo), SelftestError> {
        let ask = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
        let answer = self.cri.runtime().container_status(ask).await?.into_inner();
        Ok((answer.status.unwrap_or_default(), verbose_info::read(&answer.info)?))
    }

    pub(in super::super) async fn start(&self, container: &SelftestContainer) -> Result<(), SelftestError> {
        let ask = v1::StartContainerRequest { container_id: container.id.clone() };
        self.cri.runtime().start_container(ask).await?;
        Ok(())
    }

    /// Waits until the container's log has a line that ends with `line`.
    pub(in super::super) async fn wait_for_line(
        &self,
        container: &SelftestContainer,
        line: &str,
    ) -> Result<PathBuf, SelftestError> {
        const WITHIN: Duration = Duration::from_secs(120);
        let begin = Instant::now();
        loop {
            let (status, _) = self.inspect(&container.id).await?;
            let path = PathBuf::from(&status.log_path);
            let log = tokio::fs::read_to_string(&path).await.unwrap_or_default();
            if log.lines().any(|found| found.ends_with(line)) {
                return Ok(path);
            }
            if status.state() == v1::ContainerState::ContainerExited {
                let code = status.exit_code;
                let words = format!("the container exited with code {code} before it printed {line:?}; log: {log:?}");
                return Err(SelftestError::Wrong(words));
            }
            if begin.elapsed() > WITHIN {
                let path = path.display();
                return Err(SelftestError::Wrong(format!(
                    "line {line:?} not found in {path} after {WITHIN:?}: {log:?}"
                )));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Runs a subcommand of `crisp demo-workload` in the container, and returns its output.
    pub(in super::super) async fn exec(
        &self,
        container: &SelftestContainer,
        words: &[&str],
    ) -> Result<String, SelftestError> {
        let program = [image::PROGRAM, "demo-workload"].iter().chain(words).map(|word| (*word).to_owned());
        let ask = v1::ExecSyncRequest { container_id: container.id.clone(), cmd: program.collect(), timeout: 60 };
        let done = self.cri.runtime().exec_sync(ask).await?.into_inner();
        let text = String::from_utf8_lossy(&done.stdout).trim().to_owned();
        if done.exit_code == 0 {
            return Ok(text);
        }
        let (code, stderr) = (done.exit_code, String::from_utf8_lossy(&done.stderr).trim().to_owned());
        Err(SelftestError::Wrong(format!("the command exited with code {code}: {stderr:?}")))
    }

    pub(in super::super) async fn update(
        &self,
        container: &SelftestContainer,
        to: v1::LinuxContainerResources,
    ) -> Result<(), SelftestError> {
        let container_id = container.id.clone();
        let ask = v1::UpdateContainerResourcesRequest { container_id, linux: Some(to), ..Default::default() };
        self.cri.runtime().update_container_resources(ask).await?;
        Ok(())
    }

    pub(in super::super) async fn update_pod(
        &self,
        pod: &SelftestPod,
        to: v1::LinuxContainerResources,
    ) -> Result<(), SelftestError> {
        let pod_sandbox_id = pod.id.clone();
        let ask = v1::UpdatePodSandboxResourcesRequest { pod_sandbox_id, resources: Some(to), ..Default::default() };
        self.cri.runtime().update_pod_sandbox_resources(ask).await?;
        Ok(())
    }

    pub(in super::super) async fn stats(
        &self,
        container: &SelftestContainer,
    ) -> Result<v1::ContainerStats, SelftestError> {
        let ask = v1::ContainerStatsRequest { container_id: container.id.clone() };
        let stats = self.cri.runtime().container_stats(ask).await?.into_inner().stats;
        stats.ok_or_else(|| SelftestError::Wrong("the daemon returned no stats of the container".to_owned()))
    }

    pub(in super::super) async fn stop(&self, container: &SelftestContainer) -> Result<i32, SelftestError> {
        let ask = v1::StopContainerRequest { container_id: container.id.clone(), timeout: 10 };
        self.cri.runtime().stop_container(ask).await?;
        Ok(self.inspect(&container.id).await?.0.exit_code)
    }

    pub(in super::super) async fn remove(&self, container: &SelftestContainer) -> Result<(), SelftestError> {
        let ask = v1::RemoveContainerRequest { container_id: container.id.clone() };
        self.cri.runtime().remove_container(ask).await?;
        Ok(())
    }

    /// Removes the pods, image and logs of this run.
    pub(in super::super) async fn clear(&self) -> Result<(), SelftestError> {
        cleanup::remove_all(&self.cri, &self.state, &self.run).await?;
        Ok(())
    }

    /// Removes everything and stops the watcher; if the removal fails, the watcher continues it.
    pub(in super::super) async fn end(self) -> Result<(), SelftestError> {
        self.clear().await?;
        self.watcher.stop().map_err(SelftestError::Watcher)
    }
}

/// Reads the kernel's limits from the cgroup files.
pub(in super::super) fn observed(group: &Cgroup) -> Result<ObservedLimits, SelftestError> {
    Ok(group.observe(&AppliedValues::default())?.observed)
}
