//! The environment of a daemon, and its cleanup.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::harness::{kill, pause, program, seconds};
use crate::support::image_fixture::{Archive, Template};
use crate::support::netns::Host;
use crate::support::snapshot::Snapshot;
use crate::support::{cgroup_fixture, kernel_state};

/// Directories and a cgroup for one daemon at a time. Dropping it removes them and kills all
/// processes of the daemon and its pods.
#[derive(Debug)]
pub(crate) struct TestEnv {
    dir: TempDir,
    cgroup: String,
    systemd: bool,
    settings: String,
    /// The network namespace in place of the host's, if the daemon has one.
    host: Option<Arc<Host>>,
    _template: Arc<Template>,
}

impl TestEnv {
    /// Creates an environment with the test image in its store.
    pub(crate) fn new() -> Self {
        Self::with_settings("")
    }

    /// `settings` are appended to the configuration file.
    ///
    /// Pods get no network: use [`TestEnv::connected`] for tests of networks.
    pub(crate) fn with_settings(settings: &str) -> Self {
        let settings = format!("{settings}\n[network]\nmode = \"none\"");
        Self::with_cgroup(format!("/crisp-e2e-{}", unique()), false, &settings, None)
    }

    /// The same with a metrics endpoint at [`TestEnv::metrics`].
    pub(crate) fn with_metrics(settings: &str) -> Self {
        let env = Self::with_settings(settings);
        let text = fs::read_to_string(env.config()).unwrap();
        fs::write(env.config(), format!("{text}[metrics]\nlisten = {:?}\n", env.metrics())).unwrap();
        env
    }

    /// Creates an environment with a network namespace in place of the host's, in which pods are
    /// connected by default; CNI configurations are those in [`TestEnv::cni`].
    pub(crate) fn connected(settings: &str) -> Self {
        let name = unique();
        let host = Host::new(format!("crisp-e2e-{name}"));
        Self::in_network(&name, settings, Arc::new(host))
    }

    /// Creates another environment in the same network namespace.
    pub(crate) fn beside(&self, settings: &str) -> Self {
        Self::in_network(
            &unique(),
            settings,
            Arc::clone(self.host.as_ref().expect("only a connected ground has a host")),
        )
    }

    fn in_network(name: &str, settings: &str, host: Arc<Host>) -> Self {
        let env = Self::with_cgroup(format!("/crisp-e2e-{name}"), false, settings, Some(host));
        fs::create_dir(env.cni()).unwrap();
        env
    }

    /// With a slice instead of the cgroup: a dash in its name would start a child slice.
    pub(crate) fn under_systemd() -> Self {
        let cgroup = format!("/crispe2e{}.slice", unique().replace('-', "x"));
        Self::with_cgroup(cgroup, true, "[network]\nmode = \"none\"", None)
    }

    fn with_cgroup(cgroup: String, systemd: bool, settings: &str, host: Option<Arc<Host>>) -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests need root");
        let template = Template::get();
        let dir = tempfile::Builder::new().prefix("crisp-").tempdir().unwrap();
        let settings = settings.to_owned();
        let env = Self { dir, cgroup, systemd, settings, host, _template: template.clone() };
        fs::create_dir(env.logs()).unwrap();
        template.copy_to(&env.root());
        env.write_config();
        env
    }

    fn write_config(&self) {
        let mut text = format!(
            "listen = {:?}\nroot = {:?}\nstate = {:?}\n{}\n[cgroup]\nparent = {:?}\ndriver = {:?}\n[shim]\npath = {:?}\n",
            self.socket(),
            self.root(),
            self.state(),
            self.settings,
            self.cgroup,
            if self.systemd { "systemd" } else { "cgroupfs" },
            program("crisp-shim"),
        );
        if self.host.is_some() {
            write!(text, "[network.cni]\nconf_dir = {:?}\n", self.cni()).unwrap();
        }
        fs::write(self.config(), text).unwrap();
    }

    /// Returns the network namespace in place of the host's.
    pub(crate) fn host(&self) -> &Host {
        self.host.as_ref().expect("only a connected ground has a host")
    }

    /// Returns the interfaces that a daemon created; none without a network namespace.
    pub(crate) fn links(&self) -> Vec<String> {
        self.host.as_ref().map(|host| host.links()).unwrap_or_default()
    }

    /// The directory of CNI configurations.
    pub(crate) fn cni(&self) -> PathBuf {
        self.dir().join("net.d")
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn cgroup(&self) -> &str {
        &self.cgroup
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir().join("root")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir().join("state")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir().join("crisp.sock")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir().join("crisp.toml")
    }

    /// The socket of its metrics endpoint, if it has one.
    pub(crate) fn metrics(&self) -> PathBuf {
        self.dir().join("metrics.sock")
    }

    /// The directory for logs of pods.
    pub(crate) fn logs(&self) -> PathBuf {
        self.dir().join("logs")
    }

    fn log(&self) -> PathBuf {
        self.dir().join("daemon.log")
    }

    /// Returns the log of all daemons of this environment.
    pub(crate) fn read_log(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Returns a command of the program under test.
    pub(crate) fn crisp(&self, arguments: &[&str]) -> Command {
        let mut command = match &self.host {
            Some(host) => host.command(program("crisp")),
            None => Command::new(program("crisp")),
        };
        command
            .args(arguments)
            .env_remove("CRISP_FAILPOINTS")
            .env_remove("CONTAINER_RUNTIME_ENDPOINT")
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }

    /// Returns a command for `crisp serve`.
    pub(crate) fn serve(&self) -> Command {
        let mut command = self.crisp(&["serve", "--config"]);
        command.arg(self.config()).stdout(Stdio::piped());
        command.stderr(File::options().create(true).append(true).open(self.log()).unwrap());
        command
    }

    /// Imports an image into the store; no daemon may be running.
    pub(crate) fn import(&self, archive: &Archive) {
        archive.import_to(&self.root());
    }

    pub(crate) fn snapshot(&self, daemon: Option<i32>) -> Snapshot {
        Snapshot::take(self, daemon)
    }

    /// Waits until the kernel's objects are the same as `before`.
    pub(crate) fn wait_until_like(&self, before: &Snapshot, daemon: Option<i32>) {
        let begin = Instant::now();
        loop {
            let now = self.snapshot(daemon);
            if now == *before {
                return;
            }
            let words = now.difference(before);
            assert!(begin.elapsed() < seconds(5), "the kernel does not list what it should:\n{words}");
            pause();
        }
    }

    /// Waits until no object of a pod or container is left.
    pub(crate) fn wait_until_empty(&self, daemon: Option<i32>) {
        let mut now = self.snapshot(daemon);
        if !now.is_empty() {
            now.clear();
            self.wait_until_like(&now, daemon);
        }
    }

    /// Creates a cgroup for a pod, as the kubelet does.
    pub(crate) fn pod_cgroup(&self, name: &str) -> String {
        let path = format!("{}/{name}", self.cgroup);
        cgroup_fixture::make(&path);
        path
    }

    /// Removes such a cgroup, which must exist and be empty.
    pub(crate) fn remove_pod_cgroup(&self, path: &str) {
        cgroup_fixture::remove(path);
    }

    /// Removes everything that a reboot would remove.
    pub(crate) fn power_off(&self) {
        self.clear();
        fs::remove_dir_all(self.state()).unwrap();
    }

    fn clear(&self) {
        cgroup_fixture::thaw(&self.cgroup);
        if self.systemd {
            // It would create cgroups while they are removed.
            Command::new("systemctl").args(["stop", &self.cgroup[1..]]).status().ok();
        }
        let begin = Instant::now();
        loop {
            let left = kernel_state::processes_of(self.dir(), &self.cgroup, None);
            if left.is_empty() {
                break;
            }
            assert!(begin.elapsed() < seconds(10), "these cannot be killed: {left:?}");
            left.iter().for_each(|process| kill(process.pid, Signal::KILL));
            std::thread::sleep(Duration::from_millis(5));
        }
        for point in kernel_state::mounts_under(self.dir()).iter().rev() {
            unmount(point, UnmountFlags::DETACH).ok();
        }
        cgroup_fixture::remove_all(&self.cgroup);
    }
}

/// Returns a name that no other test uses on this host.
fn unique() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show();
        }
        self.clear();
        // Unlike the standard library's function, this needs neither stack nor descriptors per
        // directory level; a tree may be deeper than either allows.
        Command::new("rm").arg("-rf").arg(self.dir()).status().ok();
    }
}

impl TestEnv {
    /// Prints the logs, to explain a failure.
    fn show(&self) {
        let tail = |text: &str| {
            text.lines().rev().take(60).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        eprintln!("---- daemon's log\n{}", tail(&self.read_log()));
        for pod in fs::read_dir(self.state().join("pods")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(pod.path().join("shim.log")).unwrap_or_default();
            if !text.is_empty() {
                eprintln!("---- shim of {}\n{}", pod.file_name().to_string_lossy(), tail(&text));
            }
        }
    }
}

/// Writes a file that only root can read.
pub(crate) fn write_secret(file: &Path, content: &str) {
    File::options().create(true).truncate(true).write(true).mode(0o600).open(file).unwrap();
    fs::write(file, content).unwrap();
}
