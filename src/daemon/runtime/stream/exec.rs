//! Exec for somebody who looks on.
//!
//! A client that vanishes takes its streams with it: pipes end, a terminal hangs up. What the program makes of that is its own
//! affair; nobody kills it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use model::error_chain::chain;
use model::{ContainerId, ContainerState};
use shim_protocol::{ExecRequest, ExecStreamRequest, Stdio};
use streaming::remote_command::RemoteCommand;
use streaming::{Outcome, RecvStream, Resizes, SendStream};
use tokio::sync::{oneshot, watch};

use super::copy;
use super::copy::Terminal;
use super::exec_sync::ExecError;
use super::shutdown::ShutdownWatch;
use crate::runtime::Runtime;
use crate::sandbox_client::SandboxClient;
use crate::store::ContainerRecord;

/// What is between a program and us: more than by default, since every turn costs two switches.
const PIPE_SIZE: usize = 256 << 10;

/// The daemon's ends of what a program is connected to.
enum ExecStdio {
    Pipes { stdin: Option<OwnedFd>, stdout: Option<OwnedFd>, stderr: Option<OwnedFd> },
    Terminal(Terminal),
}

/// A program that runs, until it ends or is left alone.
struct ExecSession {
    sandbox: SandboxClient,
    exec: u64,
    ended: oneshot::Receiver<i32>,
    ends: ExecStdio,
}

impl Runtime {
    /// The container, if commands can be executed in it.
    pub(crate) fn running(&self, id: &str) -> Result<Arc<ContainerRecord>, ExecError> {
        let record = self.readable_container(id)?.get();
        match record.state {
            ContainerState::Running { .. } => Ok(record),
            _ => Err(ExecError::NotRunning { container: record.id.clone(), phase: record.state.name() }),
        }
    }

    /// Runs a command between a client and a container, and tells the client how it ended.
    pub(crate) async fn exec_stream(
        self: &Arc<Self>,
        container: &ContainerId,
        command: Vec<String>,
        tty: bool,
        remote: RemoteCommand,
    ) {
        let RemoteCommand { stdin, stdout, stderr, resizes, talk } = remote;
        let stdio = Stdio { stdin: stdin.is_some(), stdout: stdout.is_some(), stderr: stderr.is_some() };
        let (gone, mut watch) = (talk.gone(), self.stream_shutdown.watch());
        let outcome = match self.begin(container, command, tty, stdio).await {
            Ok(running) => {
                let sandbox = running.sandbox.clone();
                let exec = running.exec;
                let code = tokio::select! {
                    code = running.wait_for_exit(stdin, stdout, stderr, resizes, &mut watch) => code,
                    () = gone => {
                        sandbox.forget_exec(exec);
                        return tracing::debug!(%container, "the client of an exec is gone");
                    }
                };
                match code {
                    Some(0) => Outcome::Success,
                    Some(code) => Outcome::Exit(code),
                    None => {
                        watch.shutdown_status().unwrap_or_else(|| Outcome::Failed("the pod's shim is gone".to_owned()))
                    }
                }
            }
            Err(error) => {
                let words = chain(&error);
                tracing::debug!(%container, error = words, "exec");
                Outcome::Failed(format!("error executing command in container: {words}"))
            }
        };
        talk.end(&outcome).await;
    }

    async fn begin(
        &self,
        container: &ContainerId,
        args: Vec<String>,
        terminal: bool,
        stdio: Stdio,
    ) -> Result<ExecSession, ExecError> {
        let record = self.container(container.as_str())?;
        let container = record.id.clone();
        let Some(sandbox) = self.sandbox_of(&record.pod) else {
            return Err(ExecError::NotRunning { container, phase: "in a pod that is not ready" });
        };
        let (ends, theirs) = ends(terminal, stdio).map_err(ExecError::Pipe)?;
        let (exec, ended) = sandbox.expect_exec();
        let stdio = if terminal { Stdio { stdin: false, stdout: false, stderr: false } } else { stdio };
        let request = ExecRequest { container: container.clone(), exec, args, stdio };
        let started = sandbox.exec_stream(ExecStreamRequest { exec: request, terminal }, &theirs).await;
        drop(theirs);
        if let Err(source) = started {
            sandbox.forget_exec(exec);
            return Err(ExecError::refused(container, source));
        }
        let ends = match ends {
            DaemonSide::Pipes(ends) => ends,
            DaemonSide::Socket(socket) => ExecStdio::Terminal(master(&socket).map_err(ExecError::Pipe)?),
        };
        Ok(ExecSession { sandbox, exec, ended, ends })
    }
}

/// What the daemon keeps of what it made.
enum DaemonSide {
    Pipes(ExecStdio),
    /// The terminal will come through it.
    Socket(OwnedFd),
}

/// Makes both sides: ours, and what goes to the shim in its order.
fn ends(terminal: bool, stdio: Stdio) -> io::Result<(DaemonSide, Vec<OwnedFd>)> {
    if terminal {
        let (ours, theirs) = sys::seqpacket::pair()?;
        return Ok((DaemonSide::Socket(ours), vec![theirs]));
    }
    let mut all = Vec::new();
    let mut pipe = |wanted: bool, we_write: bool| -> io::Result<Option<OwnedFd>> {
        if !wanted {
            return Ok(None);
        }
        let (reader, writer) = io::pipe()?;
        // More than one may have is no more than slower.
        rustix::pipe::fcntl_setpipe_size(&writer, PIPE_SIZE).ok();
        let (ours, theirs): (OwnedFd, OwnedFd) =
            if we_write { (writer.into(), reader.into()) } else { (reader.into(), writer.into()) };
        all.push(theirs);
        Ok(Some(ours))
    };
    let Stdio { stdin, stdout, stderr } = stdio;
    let ends =
        ExecStdio::Pipes { stdin: pipe(stdin, true)?, stdout: pipe(stdout, false)?, stderr: pipe(stderr, false)? };
    Ok((DaemonSide::Pipes(ends), all))
}

/// The terminal that the new process sent before its program ran.
fn master(socket: &OwnedFd) -> io::Result<Terminal> {
    let sent = sys::seqpacket::receive(socket, &mut [0; 16])?;
    let master = sent.and_then(|(_, mut fds)| fds.pop()).ok_or(io::ErrorKind::UnexpectedEof)?;
    Terminal::new(master)
}

impl ExecSession {
    /// Carries everything both ways until the program ends; its exit code, or none when the shim died or the daemon does.
    async fn wait_for_exit(
        self,
        stdin: Option<RecvStream>,
        stdout: Option<SendStream>,
        stderr: Option<SendStream>,
        resizes: Option<Resizes>,
        watch: &mut ShutdownWatch,
    ) -> Option<i32> {
        let (over, ended) = watch::channel(false);
        let code = async {
            let code = tokio::select! {
                code = self.ended => code.ok(),
                () = watch.wait_shutdown() => None,
            };
            // A child in the background may hold the streams open for ever: from now on only what is there is taken.
            over.send_replace(true);
            code
        };
        match self.ends {
            ExecStdio::Pipes { stdin: to, stdout: from, stderr: from_err } => {
                let carried = async {
                    tokio::join!(
                        copy::write_pipe(stdin, to, ended.clone()),
                        copy::read_pipe(from, stdout, ended.clone()),
                        copy::read_pipe(from_err, stderr, ended.clone()),
                    )
                };
                tokio::join!(code, carried).0
            }
            ExecStdio::Terminal(terminal) => {
                let carried = async {
                    tokio::join!(
                        terminal.write(stdin, ended.clone()),
                        terminal.read(stdout, ended.clone()),
                        terminal.resize(resizes, ended.clone()),
                    )
                };
                tokio::join!(code, carried).0
            }
        }
    }
}
