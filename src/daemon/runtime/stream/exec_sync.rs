//! ExecSync: runs a command and returns its output.

use std::io::{self, PipeReader};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use model::{ContainerId, ErrorClass, ErrorKind};
use shim_protocol::{ExecRequest, ShimErrorKind, Stdio};
use tokio::net::unix::pipe::Receiver;

use super::exec_budget::{COMMANDS_MAX, ExecLimits, ExecShare};
use super::running::NotRunning;
use crate::runtime::Runtime;
use crate::runtime::container::oom_score;
use crate::sandbox_client::{SandboxClient, SandboxError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecError {
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
    #[error("creating pipes for the output of ExecSync")]
    Pipe(#[source] io::Error),
    #[error("failed to exec in container {container}")]
    Program { container: ContainerId, source: SandboxError },
    #[error("sending the exec in container {container} to the pod's shim")]
    Shim { container: ContainerId, source: SandboxError },
    #[error("container {container} already runs {COMMANDS_MAX} ExecSync commands, the maximum: wait until one ends")]
    TooMany { container: ContainerId },
    #[error("cmd is too long for the message to the pod's shim")]
    TooLong(#[source] shim_protocol::FrameError),
    #[error("the ExecSync command did not exit within {0:?} and was killed")]
    Timeout(Duration),
}

impl ErrorClass for ExecError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotRunning(e) => e.kind(),
            Self::Pipe(_) | Self::Program { .. } => ErrorKind::Internal,
            Self::TooMany { .. } => ErrorKind::Exhausted,
            Self::TooLong(_) => ErrorKind::Invalid,
            Self::Shim { source, .. } => source.kind(),
            Self::Timeout(_) => ErrorKind::Deadline,
        }
    }
}

#[derive(Debug)]
pub(crate) struct ExecOutput {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) code: i32,
    /// The budget of the output; must be dropped after the output.
    pub(crate) share: Arc<ExecShare>,
}

/// How long a killed command may take to exit.
const KILL_WITHIN: Duration = Duration::from_secs(10);

impl Runtime {
    /// Runs a command in a container, waits for its exit, not for processes that it left in the
    /// background, and returns its output. Takes no lock. The command is killed on timeout, and
    /// when the caller disconnects.
    pub(crate) async fn exec_sync(
        self: &Arc<Self>,
        id: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, ExecError> {
        let (record, sandbox) = self.running_in_sandbox(id)?;
        let container = record.id.clone();
        let settings = self.settings();
        let limits = ExecLimits { each: settings.exec_output_max, total: settings.exec_output_total };
        let share = self.exec_budget.share(&record.pod, &container, limits);
        let share = share.ok_or_else(|| ExecError::TooMany { container: container.clone() })?;
        let (out, their_out) = std::io::pipe().map_err(ExecError::Pipe)?;
        let (err, their_err) = std::io::pipe().map_err(ExecError::Pipe)?;
        let (exec, mut ended) = sandbox.expect_exec();
        // Kills the command when the request ends in any way.
        let mut kill_guard = ExecKillGuard { sandbox: &sandbox, exec: Some(exec) };
        let stdio = Stdio { stdin: false, stdout: true, stderr: true };
        let request = ExecRequest {
            container: container.clone(),
            exec,
            args: command,
            stdio,
            oom_score_adj: oom_score::for_exec(&record),
        };
        // The start counts, too: a process that is frozen meanwhile never runs its program.
        let run = async {
            let started = sandbox.exec(request, &[their_out.as_fd(), their_err.as_fd()]).await;
            drop((their_out, their_err));
            started?;
            Ok(collect(out, err, share, &mut ended).await)
        };
        let outcome = match timeout {
            Some(limit) => match tokio::time::timeout(limit, run).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    kill_guard.pull();
                    // Waits a limited time for a shim that hangs.
                    tokio::time::timeout(KILL_WITHIN, &mut ended).await.ok();
                    sandbox.forget_exec(exec);
                    return Err(ExecError::Timeout(limit));
                }
            },
            None => run.await,
        };
        let output = match outcome {
            Ok(collected) => collected.map_err(ExecError::Pipe)?,
            Err(source) => return Err(kill_guard.refused(container, source)),
        };
        kill_guard.exec = None;
        output.ok_or(ExecError::Shim { container, source: SandboxError::Gone })
    }
}

/// Kills the command when it is dropped.
struct ExecKillGuard<'a> {
    sandbox: &'a SandboxClient,
    exec: Option<u64>,
}

impl ExecKillGuard<'_> {
    /// Kills the command. If the shim has exited, the cleanup of the pod kills it.
    fn pull(&mut self) {
        if let Some(exec) = self.exec.take() {
            let sandbox = self.sandbox.clone();
            tokio::spawn(async move { sandbox.kill_exec(exec).await });
        }
    }

    /// Handles a failed request. An error of the shim means that no command runs; otherwise one may
    /// run and is killed.
    fn refused(&mut self, container: ContainerId, source: SandboxError) -> ExecError {
        if let SandboxError::Failed(_) | SandboxError::Frame(shim_protocol::FrameError::TooLong(_)) = &source
            && let Some(exec) = self.exec.take()
        {
            self.sandbox.forget_exec(exec);
        }
        ExecError::refused(container, source)
    }
}

impl ExecError {
    /// Returns the error of a command that the shim did not start.
    pub(crate) fn refused(container: ContainerId, source: SandboxError) -> Self {
        match source {
            SandboxError::Failed(ref failure) if failure.kind == ShimErrorKind::Program => {
                Self::Program { container, source }
            }
            SandboxError::Frame(too_long @ shim_protocol::FrameError::TooLong(_)) => Self::TooLong(too_long),
            _ => Self::Shim { container, source },
        }
    }
}

impl Drop for ExecKillGuard<'_> {
    fn drop(&mut self) {
        if let Some(exec) = self.exec {
            self.sandbox.forget_exec(exec);
            self.pull();
        }
    }
}

/// Reads both streams until the command has exited and they are empty; `None` if the shim died.
async fn collect(
    out: PipeReader,
    err: PipeReader,
    share: Arc<ExecShare>,
    ended: &mut tokio::sync::oneshot::Receiver<i32>,
) -> io::Result<Option<ExecOutput>> {
    let mut out = OutputBuffer::new(out)?;
    let mut err = OutputBuffer::new(err)?;
    let code = loop {
        // Both are read in turn: a background process that floods one must not block the other.
        let read = async {
            tokio::select! {
                read = out.read(&share), if !out.over => read,
                read = err.read(&share), if !err.over => read,
                else => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            code = &mut *ended => break code,
            read = read => read?,
        }
    };
    let Ok(code) = code else { return Ok(None) };
    // A background process may keep the pipes open: only available output is read.
    out.drain(&share)?;
    err.drain(&share)?;
    Ok(Some(ExecOutput { stdout: out.bytes, stderr: err.bytes, code, share }))
}

/// The size of a read in bytes.
const CHUNK: usize = 64 * 1024;
/// The largest pipe of an unprivileged process in bytes.
const PIPE_MAX: usize = 1024 * 1024;

/// One stream, with the kept output.
struct OutputBuffer {
    pipe: Receiver,
    bytes: Vec<u8>,
    over: bool,
}

impl OutputBuffer {
    fn new(pipe: PipeReader) -> io::Result<Self> {
        Ok(Self { pipe: Receiver::from_owned_fd(pipe.into())?, bytes: Vec::new(), over: false })
    }

    /// Waits for output. Output beyond the budget is read and dropped, so that the command does not
    /// block.
    async fn read(&mut self, share: &ExecShare) -> io::Result<()> {
        self.pipe.readable().await?;
        let mut buffer = vec![0; CHUNK];
        match self.pipe.try_read(&mut buffer) {
            Ok(n) => {
                self.keep(&buffer[..n], share);
                Ok(())
            }
            Err(nothing) if nothing.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads the available output, without waiting for tokio, whose readiness may be older than the
    /// last bytes. Reads at most the size of a pipe: a background process may write as fast as this
    /// reads.
    fn drain(&mut self, share: &ExecShare) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        for _ in 0..PIPE_MAX / CHUNK {
            if self.over {
                break;
            }
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(n) => self.keep(&buffer[..n], share),
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8], share: &ExecShare) {
        self.over = bytes.is_empty();
        let kept = &bytes[..share.keep(bytes.len())];
        if self.bytes.capacity() - self.bytes.len() < kept.len() {
            // Grows by a quarter: doubling would take up to twice the held size.
            self.bytes.reserve_exact(kept.len().max(self.bytes.len() / 4));
        }
        self.bytes.extend_from_slice(kept);
    }
}
