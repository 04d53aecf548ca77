//! Where a daemon lives, and how all of it goes away.

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

/// Directories and a cgroup for one daemon at a time. All of it goes away with this, and so does whatever runs in it.
#[derive(Debug)]
pub(crate) struct TestEnv {
    dir: TempDir,
    cgroup: String,
    systemd: bool,
    settings: String,
    /// The network that its daemon takes for the machine's, where it has one of its own.
    host: Option<Arc<Host>>,
    _template: Arc<Template>,
}

impl TestEnv {
    /// With the test image in its store.
    pub(crate) fn new() -> Self {
        Self::with_settings("")
    }

    /// `settings` are lines for the end of the configuration file.
    ///
    /// Pods are not connected: [`TestEnv::connected`] is for tests of networks.
    pub(crate) fn with_settings(settings: &str) -> Self {
        let settings = format!("{settings}\n[network]\nmode = \"none\"");
        Self::with_cgroup(format!("/crisp-e2e-{}", unique()), false, &settings, None)
    }

    /// The same, and metrics are told at [`TestEnv::metrics`].
    pub(crate) fn with_metrics(settings: &str) -> Self {
        let env = Self::with_settings(settings);
        let text = fs::read_to_string(env.config()).unwrap();
        fs::write(env.config(), format!("{text}[metrics]\nlisten = {:?}\n", env.metrics())).unwrap();
        env
    }

    /// With a network of its own in place of the machine's, in which pods are connected as by default; of CNI it sees what
    /// a test puts into [`TestEnv::cni`].
    pub(crate) fn connected(settings: &str) -> Self {
        let name = unique();
        let host = Host::new(format!("crisp-e2e-{name}"));
        Self::in_network(&name, settings, Arc::new(host))
    }

    /// Another one in the same network.
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

    /// With a slice in place of the cgroup: a dash in its name would be a step down.
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

    /// The network that the daemon takes for the machine's.
    pub(crate) fn host(&self) -> &Host {
        self.host.as_ref().expect("only a connected ground has a host")
    }

    /// The interfaces that a daemon made; none where it has no network of its own to make them in.
    pub(crate) fn links(&self) -> Vec<String> {
        self.host.as_ref().map(|host| host.links()).unwrap_or_default()
    }

    /// Where CNI networks are configured.
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

    /// The socket of its metrics, where there is one.
    pub(crate) fn metrics(&self) -> PathBuf {
        self.dir().join("metrics.sock")
    }

    /// For the logs of pods.
    pub(crate) fn logs(&self) -> PathBuf {
        self.dir().join("logs")
    }

    fn log(&self) -> PathBuf {
        self.dir().join("daemon.log")
    }

    /// All that daemons here have logged.
    pub(crate) fn read_log(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// A command of the program under test, not yet started.
    pub(crate) fn crisp(&self, arguments: &[&str]) -> Command {
        let mut command = match &self.host {
            Some(host) => host.command(program("crisp")),
            None => Command::new(program("crisp")),
        };
        command.args(arguments).env_remove("CRISP_FAILPOINTS").current_dir("/").stdin(Stdio::null());
        command
    }

    /// `crisp serve`, not yet started.
    pub(crate) fn serve(&self) -> Command {
        let mut command = self.crisp(&["serve", "--config"]);
        command.arg(self.config()).stdout(Stdio::piped());
        command.stderr(File::options().create(true).append(true).open(self.log()).unwrap());
        command
    }

    /// Puts an image into the store; no daemon may be running.
    pub(crate) fn import(&self, archive: &Archive) {
        archive.import_to(&self.root());
    }

    pub(crate) fn snapshot(&self, daemon: Option<i32>) -> Snapshot {
        Snapshot::take(self, daemon)
    }

    /// Waits until the kernel lists the same as `before`.
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

    /// Waits until nothing is left that a daemon made for pods and containers.
    pub(crate) fn wait_until_empty(&self, daemon: Option<i32>) {
        let mut now = self.snapshot(daemon);
        if !now.is_empty() {
            now.clear();
            self.wait_until_like(&now, daemon);
        }
    }

    /// A cgroup for a pod, made as the kubelet makes it.
    pub(crate) fn pod_cgroup(&self, name: &str) -> String {
        let path = format!("{}/{name}", self.cgroup);
        cgroup_fixture::make(&path);
        path
    }

    /// Removes such a cgroup, which must be there and empty.
    pub(crate) fn remove_pod_cgroup(&self, path: &str) {
        cgroup_fixture::remove(path);
    }

    /// Takes away what does not outlive the kernel.
    pub(crate) fn power_off(&self) {
        self.clear();
        fs::remove_dir_all(self.state()).unwrap();
    }

    fn clear(&self) {
        cgroup_fixture::thaw(&self.cgroup);
        if self.systemd {
            // It would make cgroups that are taken from under it again.
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

/// A name for something on this machine that no other test has.
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
        // Unlike what the standard library does, this needs neither stack nor descriptors for each level of directories;
        // they can be more than there is of either.
        Command::new("rm").arg("-rf").arg(self.dir()).status().ok();
    }
}

impl TestEnv {
    /// What helps to understand a failure.
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

/// Writes a file that nobody but root may read.
pub(crate) fn write_secret(file: &Path, content: &str) {
    File::options().create(true).truncate(true).write(true).mode(0o600).open(file).unwrap();
    fs::write(file, content).unwrap();
}
