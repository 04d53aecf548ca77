//! ExecSync.

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
    #[error("creating pipes")]
    Pipe(#[source] io::Error),
    #[error("failed to exec in container {container}")]
    Program { container: ContainerId, source: SandboxError },
    #[error("executing in container {container}")]
    Shim { container: ContainerId, source: SandboxError },
    #[error("container {container} runs {COMMANDS_MAX} commands of ExecSync, and takes no more")]
    TooMany { container: ContainerId },
    #[error("cmd: too long")]
    TooLong(#[source] shim_protocol::FrameError),
    #[error("the command did not end within {0:?} and was killed")]
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
    /// The output's part of the budget: to be dropped when the output is.
    pub(crate) share: Arc<ExecShare>,
}

/// How long a killed command may take to be gone.
const KILL_WITHIN: Duration = Duration::from_secs(10);

impl Runtime {
    /// Runs a command in a container and waits for its end, not for that of what it left in the background.
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
        // Whatever happens to the request, the command does not outlive it.
        let mut kill_guard = ExecKillGuard { sandbox: &sandbox, exec: Some(exec) };
        let stdio = Stdio { stdin: false, stdout: true, stderr: true };
        let request = ExecRequest {
            container: container.clone(),
            exec,
            args: command,
            stdio,
            oom_score_adj: oom_score::for_exec(&record),
        };
        // The start counts, too: a process that somebody freezes meanwhile never gets to run its program.
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
                    // A shim that stands still holds nobody up for longer.
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
    /// Kills. A shim that is gone took the command with it, or its burial will.
    fn pull(&mut self) {
        if let Some(exec) = self.exec.take() {
            let sandbox = self.sandbox.clone();
            tokio::spawn(async move { sandbox.kill_exec(exec).await });
        }
    }

    /// The ask failed: who said so knows of no command to kill, who said nothing may.
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
    /// The shim did not start the command.
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

/// Reads both streams until the command has ended and nothing more is in them; none when the shim died.
async fn collect(
    out: PipeReader,
    err: PipeReader,
    share: Arc<ExecShare>,
    ended: &mut tokio::sync::oneshot::Receiver<i32>,
) -> io::Result<Option<ExecOutput>> {
    let mut out = OutputBuffer::new(out)?;
    let mut err = OutputBuffer::new(err)?;
    let code = loop {
        // Either stream may have the turn: a background process that floods one must not hold up the other.
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
    // A child in the background may hold the pipes open for ever: only what is there is taken.
    out.drain(&share)?;
    err.drain(&share)?;
    Ok(Some(ExecOutput { stdout: out.bytes, stderr: err.bytes, code, share }))
}

/// What is read at a time.
const CHUNK: usize = 64 * 1024;
/// The largest pipe that the kernel gives to ordinary users.
const PIPE_MAX: usize = 1024 * 1024;

/// One stream, as far as it is kept.
struct OutputBuffer {
    pipe: Receiver,
    bytes: Vec<u8>,
    over: bool,
}

impl OutputBuffer {
    fn new(pipe: PipeReader) -> io::Result<Self> {
        Ok(Self { pipe: Receiver::from_owned_fd(pipe.into())?, bytes: Vec::new(), over: false })
    }

    /// Waits for output. What is beyond the share is read and dropped, so that the command is not held up.
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

    /// Takes what is there now. Asks the kernel: what tokio knows of the pipe may be older than its last bytes. No more
    /// than a pipe can hold: somebody in the background may write as fast as this reads.
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
            // A quarter more at a time: doubling would take up to twice what is held.
            self.bytes.reserve_exact(kept.len().max(self.bytes.len() / 4));
        }
        self.bytes.extend_from_slice(kept);
    }
}
