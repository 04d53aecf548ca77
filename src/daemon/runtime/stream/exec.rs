//! Exec for a streaming client.
//!
//! If the client disconnects, its streams are closed: pipes reach their end, a terminal hangs up.
//! The program is not killed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use model::ContainerId;
use model::error_chain::chain;
use shim_protocol::{ExecRequest, ExecStreamRequest, Stdio};
use streaming::Outcome;
use streaming::remote_command::{ClientStreams, RemoteCommand, StdioOptions};
use tokio::sync::{oneshot, watch};

use super::copy;
use super::copy::Terminal;
use super::exec_sync::ExecError;
use super::shutdown::ShutdownWatch;
use crate::runtime::Runtime;
use crate::runtime::container::oom_score;
use crate::sandbox_client::SandboxClient;

/// The size of a pipe to a program in bytes: larger than the default, since every copy costs two
/// context switches.
const PIPE_SIZE: usize = 256 << 10;

/// The daemon's ends of the streams of a program.
enum ExecStdio {
    Pipes(Pipes),
    Terminal(Terminal),
}

#[derive(Default)]
struct Pipes {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

/// A running program.
struct ExecSession {
    sandbox: SandboxClient,
    exec: u64,
    exited: oneshot::Receiver<i32>,
    stdio: ExecStdio,
}

impl Runtime {
    /// Executes a command in a container, connects its streams to the client, and sends the client
    /// its exit code. Takes no lock. If the client or the daemon ends first, the command is not
    /// killed; its streams are closed.
    pub(crate) async fn exec_stream(
        self: &Arc<Self>,
        container: &ContainerId,
        command: Vec<String>,
        options: StdioOptions,
        remote: RemoteCommand,
    ) {
        let RemoteCommand { streams, talk } = remote;
        let (disconnected, mut watch) = (talk.gone(), self.stream_shutdown.watch());
        let outcome = match self.start_exec(container, command, options).await {
            Ok(session) => {
                let sandbox = session.sandbox.clone();
                let exec = session.exec;
                let code = tokio::select! {
                    code = session.wait_for_exit(streams, &mut watch) => code,
                    () = disconnected => {
                        sandbox.forget_exec(exec);
                        return tracing::debug!("the client of an exec disconnected before the command ended");
                    }
                };
                match code {
                    Some(0) => Outcome::Success,
                    Some(code) => Outcome::Exit(code),
                    None => watch
                        .shutdown_status()
                        .unwrap_or_else(|| Outcome::Failed("the pod's shim has exited".to_owned())),
                }
            }
            Err(error) => {
                let message = chain(&error);
                tracing::debug!(error = message, "exec in the container failed");
                Outcome::Failed(format!("error executing command in container: {message}"))
            }
        };
        talk.end(&outcome).await;
    }

    async fn start_exec(
        &self,
        container: &ContainerId,
        args: Vec<String>,
        options: StdioOptions,
    ) -> Result<ExecSession, ExecError> {
        let (record, sandbox) = self.running_in_sandbox(container.as_str())?;
        let StdioOptions { stdin, stdout, stderr, tty } = options;
        let stdio = Stdio { stdin: stdin && !tty, stdout: stdout && !tty, stderr: stderr && !tty };
        let (exec, exited) = sandbox.expect_exec();
        let request = ExecRequest {
            container: record.id.clone(),
            exec,
            args,
            stdio,
            oom_score_adj: oom_score::for_exec(&record),
        };
        match start_connected(&sandbox, ExecStreamRequest { exec: request, terminal: tty }).await {
            Ok(stdio) => Ok(ExecSession { sandbox, exec, exited, stdio }),
            Err(error) => {
                sandbox.forget_exec(exec);
                Err(error)
            }
        }
    }
}

/// Starts a program and returns the daemon's ends of its streams.
async fn start_connected(sandbox: &SandboxClient, request: ExecStreamRequest) -> Result<ExecStdio, ExecError> {
    let container = request.exec.container.clone();
    let refused = |source| ExecError::refused(container, source);
    if request.terminal {
        let (ours, theirs) = sys::seqpacket::pair().map_err(ExecError::Pipe)?;
        sandbox.exec_stream(request, &[theirs]).await.map_err(refused)?;
        Ok(ExecStdio::Terminal(receive_terminal(&ours).map_err(ExecError::Pipe)?))
    } else {
        let (ours, theirs) = pipes(request.exec.stdio).map_err(ExecError::Pipe)?;
        sandbox.exec_stream(request, &theirs).await.map_err(refused)?;
        Ok(ExecStdio::Pipes(ours))
    }
}

/// Creates the pipes of a program: the daemon's ends, and those for the shim in the order of the
/// protocol.
fn pipes(stdio: Stdio) -> io::Result<(Pipes, Vec<OwnedFd>)> {
    let (mut ours, mut theirs) = (Pipes::default(), Vec::new());
    if stdio.stdin {
        let (reader, writer) = pipe()?;
        ours.stdin = Some(writer);
        theirs.push(reader);
    }
    for (requested, end) in [(stdio.stdout, &mut ours.stdout), (stdio.stderr, &mut ours.stderr)] {
        if requested {
            let (reader, writer) = pipe()?;
            *end = Some(reader);
            theirs.push(writer);
        }
    }
    Ok((ours, theirs))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    // Fails over the limit of the user: then the pipe is only slower.
    rustix::pipe::fcntl_setpipe_size(&writer, PIPE_SIZE).ok();
    Ok((reader.into(), writer.into()))
}

/// Receives the terminal, which the new process sends before it executes its program.
fn receive_terminal(socket: &OwnedFd) -> io::Result<Terminal> {
    let sent = sys::seqpacket::receive(socket, &mut [0; 16])?;
    let master = sent.and_then(|(_, mut fds)| fds.pop()).ok_or(io::ErrorKind::UnexpectedEof)?;
    Terminal::new(master)
}

impl ExecSession {
    /// Copies the streams in both directions until the program exits. Returns its exit code, or
    /// `None` if the shim died or the daemon shuts down.
    async fn wait_for_exit(self, streams: ClientStreams, watch: &mut ShutdownWatch) -> Option<i32> {
        let ClientStreams { stdin, stdout, stderr, resizes } = streams;
        let (over, ended) = watch::channel(false);
        let code = async {
            let code = tokio::select! {
                code = self.exited => code.ok(),
                () = watch.wait_shutdown() => None,
            };
            // A background process can keep the streams open: from now on only available output is
            // read.
            over.send_replace(true);
            code
        };
        match self.stdio {
            ExecStdio::Pipes(pipes) => {
                let copied = async {
                    tokio::join!(
                        copy::write_pipe(stdin, pipes.stdin, ended.clone()),
                        copy::read_pipe(pipes.stdout, stdout, ended.clone()),
                        copy::read_pipe(pipes.stderr, stderr, ended.clone()),
                    )
                };
                tokio::join!(code, copied).0
            }
            ExecStdio::Terminal(terminal) => {
                let copied = async {
                    tokio::join!(
                        terminal.write(stdin, ended.clone()),
                        terminal.read(stdout, ended.clone()),
                        terminal.resize(resizes, ended.clone()),
                    )
                };
                tokio::join!(code, copied).0
            }
        }
    }
}
