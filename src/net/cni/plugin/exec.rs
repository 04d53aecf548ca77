//! Executes one plugin and supervises its process.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, timeout, timeout_at};

use super::error::{PluginError, Verb};
use super::result;
use super::result::{clean, clean_start};
use crate::cni::conf::ConfList;

/// The maximum size of a result.
const STDOUT_MAX: usize = 4 << 20;
/// The size of the kept end of stderr.
const STDERR_KEPT: usize = 2 << 10;
/// The time to read the pipe after the process has exited: another process may keep it open.
const DRAIN: Duration = Duration::from_secs(1);
/// The time for which ETXTBSY is retried, while the executable is being replaced.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// The `PATH` of plugins without one in the daemon's environment: they execute `iptables` and
/// others.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A deadline, and the time limit that it is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    pub(crate) limit: Duration,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        let now = Instant::now();
        // A limit beyond the range of the clock becomes a month.
        let at = now.checked_add(limit).unwrap_or(now + Duration::from_secs(30 * 24 * 3600));
        Self { at, limit }
    }
}

/// A call of a plugin.
#[derive(Debug)]
pub(crate) struct PluginCall<'a> {
    pub(crate) plugin: &'a str,
    pub(crate) path: &'a Path,
    pub(crate) verb: Verb,
    /// The environment except `CNI_COMMAND` and `PATH`.
    pub(crate) env: Vec<(&'static str, OsString)>,
    pub(crate) stdin: Vec<u8>,
    pub(crate) deadline: Deadline,
}

/// Returns the executable of a plugin, from the first directory that has it.
pub(crate) fn find(plugin: &str, dirs: &[PathBuf]) -> Result<PathBuf, PluginError> {
    let path = dirs.iter().map(|dir| dir.join(plugin)).find(|path| path.is_file());
    path.ok_or_else(|| PluginError::Missing { plugin: plugin.to_owned(), dirs: dirs.to_vec() })
}

/// Finds the executables of all plugins, so that a missing one is reported before the first call.
pub(crate) fn find_all(list: &ConfList, dirs: &[PathBuf]) -> Result<(), PluginError> {
    list.plugins.iter().try_for_each(|plugin| find(&plugin.program, dirs).map(drop))
}

/// Calls a plugin and returns its stdout.
///
/// Kills its process group at the deadline, if stdout exceeds its limit, and when the future is
/// dropped.
pub(crate) async fn run(call: PluginCall<'_>) -> Result<PluginOutput, PluginError> {
    let PluginCall { plugin, path, verb, env, stdin, deadline } = call;
    let started = timeout_at(deadline.at, start(path, verb, &env)).await;
    let start_failed = |source| PluginError::Start { path: path.to_owned(), verb, source };
    let mut child = started.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(start_failed)?;
    let mut group = Group::of(&child);
    let mut pipes = Pipes::of(&mut child, stdin).map_err(start_failed)?;
    let ended = timeout_at(deadline.at, pipes.until_end(&mut child, &mut group)).await;
    let ended = ended.unwrap_or(Err(ExecFailure::Late));
    if ended.is_err() {
        end(group, &mut child).await;
    }
    let (plugin, stderr) = (plugin.to_owned(), clean(&pipes.err));
    match ended {
        Ok(status) => result::check_exit(PluginOutput { plugin, verb, stdout: pipes.out, stderr }, status),
        Err(ExecFailure::Late) => Err(PluginError::Late { plugin, verb, limit: deadline.limit, stderr }),
        Err(ExecFailure::Flood) => Err(PluginError::Flood { plugin, verb, limit: STDOUT_MAX, stderr }),
        Err(ExecFailure::Pipe(source)) => Err(PluginError::Talk { plugin, verb, stderr, source }),
    }
}

/// The output of a plugin.
#[derive(Debug)]
pub(crate) struct PluginOutput {
    pub(crate) plugin: String,
    pub(crate) verb: Verb,
    pub(crate) stdout: Vec<u8>,
    /// Without control characters.
    pub(crate) stderr: String,
}

impl PluginOutput {
    pub(crate) fn invalid_output(self, why: impl ToString) -> PluginError {
        let Self { plugin, verb, stdout, stderr } = self;
        PluginError::InvalidOutput { plugin, verb, why: why.to_string(), stdout: clean_start(&stdout), stderr }
    }
}

async fn start(path: &Path, verb: Verb, env: &[(&'static str, OsString)]) -> io::Result<Child> {
    let mut command = Command::new(path);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| PATH.into()))
        .env("CNI_COMMAND", verb.as_str())
        .envs(env.iter().map(|(key, value)| (key, value)))
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut tries = 0;
    loop {
        match command.spawn() {
            Err(busy) if busy.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES => {
                tries += 1;
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            done => return done,
        }
    }
}

/// Kills the process and waits briefly for its exit.
async fn end(group: Group, child: &mut Child) {
    drop(group);
    drop(timeout(DRAIN, child.wait()).await);
}

/// The process group of a plugin, killed on drop.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw))
    }

    /// Keeps what is left of the group after the plugin has exited: its id may be reused soon.
    fn release(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // It may have just exited.
            kill_process_group(leader, Signal::KILL).ok();
        }
    }
}

enum ExecFailure {
    Late,
    Flood,
    Pipe(io::Error),
}

/// The pipes of a plugin.
struct Pipes {
    stdin: Option<ChildStdin>,
    input: Vec<u8>,
    sent: usize,
    stdout: Option<ChildStdout>,
    out: Vec<u8>,
    stderr: Option<ChildStderr>,
    err: Vec<u8>,
}

impl Pipes {
    fn of(child: &mut Child, input: Vec<u8>) -> io::Result<Self> {
        let missing = || io::Error::other("a pipe is missing");
        let (stdin, stdout) = (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
        let stderr = Some(child.stderr.take().ok_or_else(missing)?);
        let (stdin, stdout) = (Some(stdin), Some(stdout));
        Ok(Self { stdin, input, sent: 0, stdout, out: Vec::new(), stderr, err: Vec::new() })
    }

    /// Waits until the process has exited and its output is complete.
    async fn until_end(&mut self, child: &mut Child, group: &mut Group) -> Result<ExitStatus, ExecFailure> {
        let status = loop {
            tokio::select! {
                ended = child.wait() => break ended.map_err(ExecFailure::Pipe)?,
                pumped = self.pump(), if self.is_open() => pumped?,
            }
        };
        group.release();
        self.stdin = None;
        match timeout(DRAIN, self.pump()).await {
            Ok(pumped) => pumped?,
            Err(_) => tracing::debug!(
                "a CNI plugin exited, but another process keeps its output open; crisp does not wait for it"
            ),
        }
        Ok(status)
    }

    fn is_open(&self) -> bool {
        self.stdin.is_some() || self.stdout.is_some() || self.stderr.is_some()
    }

    /// Moves data until all pipes are closed. Data that was moved stays if the future is dropped.
    async fn pump(&mut self) -> Result<(), ExecFailure> {
        let mut errors = [0; 1 << 10];
        while self.is_open() {
            tokio::select! {
                wrote = write(&mut self.stdin, &self.input[self.sent..]) => match wrote {
                    Ok(0) => self.stdin = None,
                    Ok(count) => self.sent += count,
                    // A plugin need not read its stdin.
                    Err(deaf) if deaf.kind() == io::ErrorKind::BrokenPipe => self.stdin = None,
                    Err(error) => return Err(ExecFailure::Pipe(error)),
                },
                read = read_more(&mut self.stdout, &mut self.out) => {
                    if read.map_err(ExecFailure::Pipe)? == 0 {
                        self.stdout = None;
                    }
                    if self.out.len() > STDOUT_MAX {
                        return Err(ExecFailure::Flood);
                    }
                },
                read = read_some(&mut self.stderr, &mut errors) => match read.map_err(ExecFailure::Pipe)? {
                    0 => self.stderr = None,
                    count => {
                        self.err.extend_from_slice(&errors[..count]);
                        let surplus = self.err.len().saturating_sub(STDERR_KEPT);
                        self.err.drain(..surplus);
                    }
                },
            }
        }
        Ok(())
    }
}

/// Pending forever if the pipe is closed.
async fn write(pipe: &mut Option<ChildStdin>, rest: &[u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) if rest.is_empty() => pipe.flush().await.map(|()| 0),
        Some(pipe) => pipe.write(rest).await,
        None => std::future::pending().await,
    }
}

async fn read_more(pipe: &mut Option<ChildStdout>, into: &mut Vec<u8>) -> io::Result<usize> {
    match pipe {
        Some(pipe) => {
            into.reserve(8 << 10);
            pipe.read_buf(into).await
        }
        None => std::future::pending().await,
    }
}

async fn read_some(pipe: &mut Option<impl AsyncRead + Unpin>, into: &mut [u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read(into).await,
        None => std::future::pending().await,
    }
}
