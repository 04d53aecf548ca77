//! A CRI client with the requests of a kubelet.

use std::future::Future;
use std::path::Path;
use std::{fmt, fs};

use cri_api::v1;
use cri_api::v1::image_service_client::ImageServiceClient;
use cri_api::v1::runtime_service_client::RuntimeServiceClient;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::image_fixture::BOX;

/// The kubelet's timeout.
const MESSAGE_MAX: usize = 16 << 20;

/// A connection to a daemon. Every call blocks, and panics without a response.
pub(crate) struct Client {
    clock: Runtime,
    channel: Channel,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// A pod, with the configuration that the kubelet repeats for each container.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) id: String,
    pub(crate) config: v1::PodSandboxConfig,
}

/// A line of a log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) time: String,
    pub(crate) stream: String,
    pub(crate) tag: String,
    pub(crate) text: String,
}

/// The result and output of an exited container.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) id: String,
    pub(crate) status: v1::ContainerStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The result of an ExecSync.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) type Asked<T> = Result<T, Status>;

impl Client {
    pub(crate) fn connect(socket: &Path) -> Self {
        let clock = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let channel = clock.block_on(async { endpoint.connect_lazy() });
        Self { clock, channel }
    }

    /// Calls the runtime service.
    pub(crate) fn call<T, F: Future<Output = Asked<Response<T>>>>(
        &self,
        ask: impl FnOnce(RuntimeServiceClient<Channel>) -> F,
    ) -> Asked<T> {
        self.wait(ask(RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)))
    }

    /// Calls the image service.
    pub(crate) fn image_call<T, F: Future<Output = Asked<Response<T>>>>(
        &self,
        ask: impl FnOnce(ImageServiceClient<Channel>) -> F,
    ) -> Asked<T> {
        self.wait(ask(ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)))
    }

    fn wait<T>(&self, answer: impl Future<Output = Asked<Response<T>>>) -> Asked<T> {
        let in_time = async { tokio::time::timeout(seconds(60), answer).await };
        self.clock.block_on(in_time).expect("the daemon answers in time").map(Response::into_inner)
    }

    pub(crate) fn try_run_pod(&self, config: v1::PodSandboxConfig) -> Asked<String> {
        let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
        self.call(|mut c| async move { c.run_pod_sandbox(request).await }).map(|answer| answer.pod_sandbox_id)
    }

    pub(crate) fn run_pod_of(&self, config: v1::PodSandboxConfig) -> Pod {
        let id = self.try_run_pod(config.clone()).unwrap();
        Pod { id, config }
    }

    pub(crate) fn stop_pod(&self, id: &str) -> Asked<()> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.call(|mut c| async move { c.stop_pod_sandbox(request).await }).map(drop)
    }

    pub(crate) fn remove_pod(&self, id: &str) -> Asked<()> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.call(|mut c| async move { c.remove_pod_sandbox(request).await }).map(drop)
    }

    pub(crate) fn try_pod_status(&self, id: &str) -> Asked<v1::PodSandboxStatusResponse> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
        self.call(|mut c| async move { c.pod_sandbox_status(request).await })
    }

    pub(crate) fn pod_status(&self, id: &str) -> v1::PodSandboxStatus {
        self.try_pod_status(id).unwrap().status.unwrap()
    }

    pub(crate) fn pods(&self) -> Vec<v1::PodSandbox> {
        self.pods_like(v1::PodSandboxFilter::default())
    }

    pub(crate) fn pods_like(&self, filter: v1::PodSandboxFilter) -> Vec<v1::PodSandbox> {
        let request = v1::ListPodSandboxRequest { filter: Some(filter) };
        self.call(|mut c| async move { c.list_pod_sandbox(request).await }).unwrap().items
    }

    pub(crate) fn try_create(&self, pod: &Pod, config: v1::ContainerConfig) -> Asked<String> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        self.call(|mut c| async move { c.create_container(request).await }).map(|answer| answer.container_id)
    }

    /// Creates a container with `command`.
    pub(crate) fn create(&self, pod: &Pod, name: &str, command: &[&str]) -> String {
        self.try_create(pod, container(name, command)).unwrap()
    }

    pub(crate) fn start(&self, id: &str) -> Asked<()> {
        let request = v1::StartContainerRequest { container_id: id.to_owned() };
        self.call(|mut c| async move { c.start_container(request).await }).map(drop)
    }

    /// Creates and starts a container with `command`.
    pub(crate) fn run(&self, pod: &Pod, name: &str, command: &[&str]) -> String {
        self.run_config(pod, container(name, command))
    }

    pub(crate) fn run_config(&self, pod: &Pod, config: v1::ContainerConfig) -> String {
        let id = self.try_create(pod, config).unwrap();
        self.start(&id).unwrap();
        id
    }

    /// Starts a container that waits until it is stopped, and then exits at once.
    pub(crate) fn run_idle(&self, pod: &Pod, name: &str) -> String {
        let id = self.run(pod, name, &IDLE);
        // From now on the container does not change.
        self.wait_printed(&id, "idle");
        id
    }

    pub(crate) fn stop(&self, id: &str, grace: i64) -> Asked<()> {
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout: grace };
        self.call(|mut c| async move { c.stop_container(request).await }).map(drop)
    }

    pub(crate) fn remove(&self, id: &str) -> Asked<()> {
        let request = v1::RemoveContainerRequest { container_id: id.to_owned() };
        self.call(|mut c| async move { c.remove_container(request).await }).map(drop)
    }

    pub(crate) fn try_status(&self, id: &str) -> Asked<v1::ContainerStatusResponse> {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
        self.call(|mut c| async move { c.container_status(request).await })
    }

    pub(crate) fn status(&self, id: &str) -> v1::ContainerStatus {
        self.try_status(id).unwrap().status.unwrap()
    }

    pub(crate) fn containers(&self) -> Vec<v1::Container> {
        self.containers_like(v1::ContainerFilter::default())
    }

    pub(crate) fn containers_like(&self, filter: v1::ContainerFilter) -> Vec<v1::Container> {
        let request = v1::ListContainersRequest { filter: Some(filter) };
        self.call(|mut c| async move { c.list_containers(request).await }).unwrap().containers
    }

    pub(crate) fn wait_exited(&self, id: &str) -> v1::ContainerStatus {
        wait_for("the container to exit", seconds(30), || {
            Some(self.status(id)).filter(|status| status.state() == v1::ContainerState::ContainerExited)
        })
    }

    /// Runs a container with this configuration until it exits.
    pub(crate) fn finish_config(&self, pod: &Pod, config: v1::ContainerConfig) -> Ended {
        let id = self.run_config(pod, config);
        let status = self.wait_exited(&id);
        let lines = log_lines(&status.log_path);
        Ended { id, stdout: text_of(&lines, "stdout"), stderr: text_of(&lines, "stderr"), status }
    }

    /// Runs a shell script in a new container until it exits.
    pub(crate) fn script(&self, pod: &Pod, name: &str, script: &str) -> Ended {
        self.finish_config(pod, container(name, &["sh", "-c", script]))
    }

    /// Returns the lines that the container has printed.
    pub(crate) fn lines(&self, id: &str) -> Vec<Line> {
        log_lines(&self.status(id).log_path)
    }

    /// Waits until the container has printed the line `text`.
    pub(crate) fn wait_printed(&self, id: &str, text: &str) {
        wait_for(&format!("the line {text:?}"), seconds(20), || {
            self.lines(id).iter().any(|line| line.text == text).then_some(())
        });
    }

    pub(crate) fn reopen_log(&self, id: &str) -> Asked<()> {
        let request = v1::ReopenContainerLogRequest { container_id: id.to_owned() };
        self.call(|mut c| async move { c.reopen_container_log(request).await }).map(drop)
    }

    pub(crate) fn try_exec(&self, id: &str, command: &[&str], timeout: i64) -> Asked<v1::ExecSyncResponse> {
        let cmd = command.iter().map(|word| (*word).to_owned()).collect();
        let request = v1::ExecSyncRequest { container_id: id.to_owned(), cmd, timeout };
        self.call(|mut c| async move { c.exec_sync(request).await })
    }

    pub(crate) fn exec(&self, id: &str, command: &[&str]) -> Done {
        let v1::ExecSyncResponse { stdout, stderr, exit_code } = self.try_exec(id, command, 0).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Done { code: exit_code, stdout: text(stdout), stderr: text(stderr) }
    }

    /// Returns the output of a shell script in a running container; the script must succeed.
    pub(crate) fn exec_script(&self, id: &str, script: &str) -> String {
        let done = self.exec(id, &["sh", "-c", script]);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{script}");
        done.stdout
    }

    pub(crate) fn remove_everything(&self) {
        for pod in self.pods() {
            self.stop_pod(&pod.id).unwrap();
            self.remove_pod(&pod.id).unwrap();
        }
    }
}

/// Waits to be stopped: a shell with PID 1 of a PID namespace ignores signals without a trap.
pub(crate) const IDLE: [&str; 3] = ["sh", "-c", "trap 'exit 0' TERM; sleep 100000 & echo idle; wait"];

/// Returns the configuration of a container with `command` in the test image, as the kubelet fills
/// it.
pub(crate) fn container(name: &str, command: &[&str]) -> v1::ContainerConfig {
    let security = v1::LinuxContainerSecurityContext {
        namespace_options: Some(namespaces(v1::NamespaceMode::Container)),
        masked_paths: vec!["/proc/kcore".to_owned(), "/proc/keys".to_owned()],
        readonly_paths: vec!["/proc/sys".to_owned()],
        ..Default::default()
    };
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: BOX.to_owned(), ..Default::default() }),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        log_path: format!("{name}.log"),
        linux: Some(v1::LinuxContainerConfig { resources: None, security_context: Some(security) }),
        ..Default::default()
    }
}

/// Returns the container's security context.
pub(crate) fn security(config: &mut v1::ContainerConfig) -> &mut v1::LinuxContainerSecurityContext {
    config.linux.get_or_insert_default().security_context.get_or_insert_default()
}

pub(crate) fn namespaces(pid: v1::NamespaceMode) -> v1::NamespaceOption {
    v1::NamespaceOption { pid: pid.into(), ..Default::default() }
}

pub(crate) fn log_lines(path: impl AsRef<Path>) -> Vec<Line> {
    let text = fs::read_to_string(path.as_ref()).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.splitn(4, ' ').map(str::to_owned);
        let mut next = || words.next().unwrap_or_else(|| panic!("no line of a log: {line:?}"));
        Line { time: next(), stream: next(), tag: next(), text: next() }
    };
    // The shim may be writing a line. Not `lines`, which removes a carriage return at the end.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.split('\n').filter(|line| !line.is_empty()).map(line).collect()
}

/// Returns the output of one stream, joined.
pub(crate) fn text_of(lines: &[Line], stream: &str) -> String {
    let mut text = String::new();
    for line in lines.iter().filter(|line| line.stream == stream) {
        text.push_str(&line.text);
        if line.tag == "F" {
            text.push('\n');
        }
    }
    text
}

impl Daemon {
    /// Returns the configuration of a pod with a log directory, as the kubelet fills it.
    pub(crate) fn pod_config(&self, name: &str) -> v1::PodSandboxConfig {
        let logs = self.env.logs().join(name);
        fs::create_dir_all(&logs).unwrap();
        let security = v1::LinuxSandboxSecurityContext {
            namespace_options: Some(namespaces(v1::NamespaceMode::Container)),
            ..Default::default()
        };
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-of-{name}"),
                namespace: "tests".to_owned(),
                attempt: 0,
            }),
            hostname: name.to_owned(),
            log_directory: logs.display().to_string(),
            linux: Some(v1::LinuxPodSandboxConfig { security_context: Some(security), ..Default::default() }),
            ..Default::default()
        }
    }

    pub(crate) fn run_pod(&self, name: &str) -> Pod {
        self.client().run_pod_of(self.pod_config(name))
    }

    /// Runs a pod with a changed configuration.
    pub(crate) fn run_pod_with(&self, name: &str, change: impl FnOnce(&mut v1::PodSandboxConfig)) -> Pod {
        let mut config = self.pod_config(name);
        change(&mut config);
        self.client().run_pod_of(config)
    }
}

/// Returns a pod's namespace options.
pub(crate) fn pod_namespaces(config: &mut v1::PodSandboxConfig) -> &mut v1::NamespaceOption {
    let security = config.linux.get_or_insert_default().security_context.get_or_insert_default();
    security.namespace_options.get_or_insert_default()
}
