//! Starts `crisp serve` for one test, and cleans up after it.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::client::Client;
use crate::support::env::TestEnv;
use crate::support::kernel_state;
use crate::support::snapshot::Snapshot;

/// The factor by which this machine is slower than usual.
pub(crate) fn slow() -> u32 {
    match std::env::var("CRISP_TEST_SLOW") {
        Ok(text) => text.parse().expect("CRISP_TEST_SLOW is a whole number"),
        Err(_) => 1,
    }
}

/// Returns `seconds` on a usual machine, longer on a slow one.
pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds) * slow()
}

/// Returns a number of repetitions that takes acceptable time on a slow machine.
pub(crate) fn times(usual: usize, when_slow: usize) -> usize {
    if slow() > 1 { when_slow } else { usual }
}

/// Repeats `look` until it returns a value.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < limit, "waited {limit:?} in vain for {what}");
        pause();
    }
}

/// The pause between two attempts.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(10) * slow().min(10));
}

/// Returns the path of a program under test.
pub(crate) fn program(name: &str) -> PathBuf {
    let dir = std::env::var_os("CRISP_BIN_DIR").expect("CRISP_BIN_DIR names the directory with crisp and crisp-shim");
    let path = Path::new(&dir).join(name);
    assert!(path.is_file(), "there is no {}", path.display());
    path
}

pub(crate) fn kill(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, signal).ok();
    }
}

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) env: TestEnv,
    process: Child,
    client: Client,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::on(TestEnv::new())
    }

    /// `settings` are lines of the configuration file.
    pub(crate) fn with_settings(settings: &str) -> Self {
        Self::on(TestEnv::with_settings(settings))
    }

    pub(crate) fn on(env: TestEnv) -> Self {
        Self::with_failpoints(env, "")
    }

    pub(crate) fn with_failpoints(env: TestEnv, failpoints: &str) -> Self {
        let (process, client) = launch(&env, failpoints);
        Self { env, process, client }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.process.id()).unwrap()
    }

    /// Kills the daemon with SIGKILL.
    pub(crate) fn kill9(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits until the daemon exits.
    pub(crate) fn wait_ended(&mut self) -> ExitStatus {
        let process = &mut self.process;
        wait_for("the daemon to end", seconds(10), || process.try_wait().unwrap())
    }

    /// Sends SIGTERM to the daemon, and waits until it exits.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        // The daemon would wait for a connection that is not read.
        self.client = Client::connect(&self.env.socket());
        kill(self.pid(), Signal::TERM);
        self.wait_ended()
    }

    /// Starts a daemon after the previous one has exited.
    pub(crate) fn revive(&mut self) {
        self.revive_with_failpoints("");
    }

    pub(crate) fn revive_with_failpoints(&mut self, failpoints: &str) {
        assert!(self.process.try_wait().unwrap().is_some(), "the last daemon still runs");
        (self.process, self.client) = launch(&self.env, failpoints);
    }

    /// Kills the daemon and starts another, also while the kernel still blocks the first one, which
    /// is returned.
    pub(crate) fn supersede(&mut self) -> Child {
        self.process.kill().unwrap();
        let (process, client) = launch(&self.env, "");
        self.client = client;
        std::mem::replace(&mut self.process, process)
    }

    /// Kills the daemon at a failpoint and starts another.
    pub(crate) fn restart(&mut self) {
        self.kill9();
        self.revive();
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.env.snapshot(Some(self.pid()))
    }

    pub(crate) fn wait_until_like(&self, before: &Snapshot) {
        self.env.wait_until_like(before, Some(self.pid()));
    }

    /// Returns the PIDs of the shims.
    pub(crate) fn shims(&self) -> Vec<i32> {
        let all = kernel_state::processes_of(self.env.dir(), self.env.cgroup(), Some(self.pid()));
        all.into_iter().filter(|process| process.name == "crisp-shim").map(|process| process.pid).collect()
    }

    /// Returns the processes of a container, the first one first.
    pub(crate) fn pids(&self, container: &str) -> Vec<i32> {
        kernel_state::pids_in(container, self.env.cgroup())
    }

    fn is_running(&mut self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_none())
    }
}

impl Drop for Daemon {
    /// Checks at the end of every test that a daemon without pods has left nothing.
    fn drop(&mut self) {
        let check = !std::thread::panicking() && self.is_running();
        if check {
            self.client.remove_everything();
            self.env.wait_until_empty(Some(self.pid()));
        }
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Starts a daemon and waits until it is ready.
fn launch(env: &TestEnv, failpoints: &str) -> (Child, Client) {
    let mut process = env.serve().env("CRISP_FAILPOINTS", failpoints).spawn().unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    match first_line(output) {
        Some(line) if line.contains("ready") => {}
        other => {
            process.kill().ok();
            process.wait().ok();
            panic!("the daemon printed {other:?} instead of its ready line:\n{}", env.read_log());
        }
    }
    assert!(fs::metadata(env.socket()).unwrap().file_type().is_socket());
    (process, Client::connect(&env.socket()))
}

/// Returns the first line of `output`, if it arrives in time; the rest is read so that the writer
/// does not block.
fn first_line(mut output: impl BufRead + Send + 'static) -> Option<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        if output.read_line(&mut line).is_ok_and(|n| n > 0) {
            sender.send(line).ok();
        }
        drop(sender);
        output.read_to_end(&mut Vec::new()).ok();
    });
    receiver.recv_timeout(seconds(20)).ok()
}

/// Returns the metrics of a daemon.
pub(crate) fn scrape(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    page.to_owned()
}
