//! The runtime under test, and the objects that a test creates in it.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use cri_api::v1;
use sync::{Mutex, RwLock};
use tempfile::TempDir;
use tonic::Code;

use crate::support::cgroup_fixture;
use crate::support::client::{Asked, Client, Pod, container};
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::image_fixture::BOX;

/// The image of critest.
const USUAL_IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.29-2";

/// Waits for a signal, and then exits at once.
const IDLE: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

/// A CRI runtime. Dropping it removes everything that a test created there, also if the test failed.
#[derive(Debug)]
pub(super) struct Target {
    client: Client,
    image: String,
    /// The parent of the cgroups of this test's pods.
    cgroup: String,
    /// The directory for logs and volumes of this test's pods.
    home: TempDir,
    pods: Mutex<Vec<String>>,
    runtime: Runtime,
}

#[derive(Debug)]
enum Runtime {
    Crisp(Box<Mutex<Daemon>>),
    Other { socket: PathBuf, _turn: Turn },
}

/// Tests share a runtime that was not started for them, except those that restart it.
#[derive(Debug)]
struct Turn {
    _shared: Option<RwLockReadGuard<'static, ()>>,
    _alone: Option<RwLockWriteGuard<'static, ()>>,
}

impl Turn {
    fn take(alone: bool) -> Self {
        static TURN: RwLock<()> = RwLock::new(());
        Self { _shared: (!alone).then(|| TURN.read()), _alone: alone.then(|| TURN.write()) }
    }
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Target {
    pub(super) fn get() -> Self {
        Self::with_turn(false)
    }

    /// For a test that restarts the runtime.
    pub(super) fn alone() -> Self {
        Self::with_turn(true)
    }

    fn with_turn(alone: bool) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        assert!(rustix::process::geteuid().is_root(), "these tests need root");
        let (runtime, image) = match setting("CRISP_RESIZE_SOCKET") {
            Some(socket) => {
                let image = setting("CRISP_RESIZE_IMAGE").unwrap_or_else(|| USUAL_IMAGE.to_owned());
                (Runtime::Other { socket: socket.into(), _turn: Turn::take(alone) }, image)
            }
            None => (Runtime::Crisp(Box::new(Mutex::new(Daemon::start()))), BOX.to_owned()),
        };
        let cgroup = format!("/crisp-resize-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let home = tempfile::Builder::new().prefix("crisp-resize-").tempdir().unwrap();
        let client = Client::connect(&socket_of(&runtime));
        let target = Self { client, image, cgroup, home, pods: Mutex::new(Vec::new()), runtime };
        if let Runtime::Other { .. } = &target.runtime {
            target.make_ready();
        }
        target
    }

    /// Panics with the reason if the runtime cannot be tested, and pulls the image.
    fn make_ready(&self) {
        let asked = self.client.call(|mut c| async move { c.runtime_config(v1::RuntimeConfigRequest {}).await });
        // Runtimes before CRI 1.28 do not report it.
        let driver = asked.ok().and_then(|config| config.linux).map(|linux| linux.cgroup_driver());
        assert_ne!(driver, Some(v1::CgroupDriver::Systemd), "the runtime must use the cgroupfs driver");
        let image = Some(v1::ImageSpec { image: self.image.clone(), ..Default::default() });
        let request = v1::ImageStatusRequest { image: image.clone(), verbose: false };
        let here = self.client.image_call(|mut c| async move { c.image_status(request).await }).unwrap();
        if here.image.is_none() {
            let request = v1::PullImageRequest { image, ..Default::default() };
            let pulled = self.client.image_call(|mut c| async move { c.pull_image(request).await });
            pulled.unwrap_or_else(|e| panic!("the image {} cannot be pulled: {e:?}", self.image));
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Opens another connection, for another thread.
    pub(super) fn connect(&self) -> Client {
        Client::connect(&socket_of(&self.runtime))
    }

    /// Whether `ContainerStatus.resources` may be absent: a runtime may leave it to the kubelet, crisp does not.
    pub(super) fn may_report_nothing(&self) -> bool {
        matches!(self.runtime, Runtime::Other { .. })
    }

    /// Creates a directory of the host, for a volume.
    pub(super) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Kills the runtime if it is crisp, and starts it again.
    pub(super) fn restart(&self) {
        match &self.runtime {
            Runtime::Crisp(daemon) => daemon.lock().restart(),
            Runtime::Other { .. } => {
                let command = setting("CRISP_RESIZE_RESTART").expect("CRISP_RESIZE_RESTART restarts the runtime");
                let status = Command::new("sh").args(["-c", &command]).status().unwrap();
                assert!(status.success(), "{command}: {status}");
            }
        }
        wait_for("the runtime to answer again", seconds(60), || {
            self.client.call(|mut c| async move { c.version(v1::VersionRequest::default()).await }).ok()
        });
    }

    /// Runs a pod below a cgroup of its own, which is created first, as the kubelet does.
    pub(super) fn run_pod(&self, name: &str) -> Pod {
        let cgroup = format!("{}/{name}", self.cgroup);
        cgroup_fixture::make(&cgroup);
        self.run_pod_below(name, &cgroup)
    }

    /// Runs a pod below an existing cgroup.
    fn run_pod_below(&self, name: &str, cgroup: &str) -> Pod {
        let logs = self.home().join("logs").join(name);
        fs::create_dir_all(&logs).unwrap();
        let options = v1::NamespaceOption {
            network: v1::NamespaceMode::Node.into(),
            pid: v1::NamespaceMode::Container.into(),
            ..Default::default()
        };
        let security = v1::LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
        let linux = v1::LinuxPodSandboxConfig {
            cgroup_parent: cgroup.to_owned(),
            security_context: Some(security),
            ..Default::default()
        };
        // The name of the cgroup is unique, also in a runtime with other pods.
        let uid = format!("{}-{name}", self.cgroup.trim_start_matches('/'));
        let config = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: uid.clone(),
                uid,
                namespace: "resize".to_owned(),
                attempt: 0,
            }),
            log_directory: logs.display().to_string(),
            linux: Some(linux),
            ..Default::default()
        };
        let pod = self.client.run_pod_of(config);
        self.pods.lock().push(pod.id.clone());
        pod
    }

    /// Returns the configuration of a container that runs a shell script.
    pub(super) fn script(&self, name: &str, script: &str) -> v1::ContainerConfig {
        let mut config = container(name, &["sh", "-c", script]);
        config.image = Some(v1::ImageSpec { image: self.image.clone(), ..Default::default() });
        let security = crate::support::client::security(&mut config);
        security.namespace_options.get_or_insert_default().network = v1::NamespaceMode::Node.into();
        config
    }

    pub(super) fn idle(&self, name: &str) -> v1::ContainerConfig {
        self.script(name, IDLE)
    }

    fn clear(&self) {
        let pods = self.pods.lock();
        for pod in pods.iter() {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                self.client.stop_pod(pod)?;
                self.client.remove_pod(pod)
            }));
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(refusal)) => eprintln!("pod {pod} is left: {refusal:?}"),
                Err(_) => eprintln!("pod {pod} is left"),
            }
        }
        cgroup_fixture::clear(&self.cgroup);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // A second panic would abort the test program before other tests have cleaned up.
        if catch_unwind(AssertUnwindSafe(|| self.clear())).is_err() && !std::thread::panicking() {
            panic!("pods and cgroups of this test still exist");
        }
    }
}

fn socket_of(runtime: &Runtime) -> PathBuf {
    match runtime {
        Runtime::Crisp(daemon) => daemon.lock().env.socket(),
        Runtime::Other { socket, .. } => socket.clone(),
    }
}

/// UpdateContainerResources.
pub(super) fn update(client: &Client, id: &str, linux: v1::LinuxContainerResources) -> Asked<()> {
    let request =
        v1::UpdateContainerResourcesRequest { container_id: id.to_owned(), linux: Some(linux), ..Default::default() };
    client.call(|mut c| async move { c.update_container_resources(request).await }).map(drop)
}

/// Calls UpdatePodSandboxResources; returns whether the runtime implements it.
pub(super) fn update_pod(client: &Client, id: &str, resources: v1::LinuxContainerResources) -> bool {
    let request = v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: id.to_owned(),
        overhead: Some(v1::LinuxContainerResources::default()),
        resources: Some(resources),
        ..Default::default()
    };
    match client.call(|mut c| async move { c.update_pod_sandbox_resources(request).await }) {
        Ok(_) => true,
        Err(refusal) if is_unimplemented(&refusal) => false,
        Err(refusal) => panic!("UpdatePodSandboxResources: the kubelet takes no other error: {refusal:?}"),
    }
}

/// The status in the kubelet's conversion.
pub(super) fn is_unimplemented(refusal: &tonic::Status) -> bool {
    match refusal.code() {
        Code::Unimplemented => true,
        Code::Unknown => refusal.message().contains("not implemented"),
        _ => false,
    }
}
