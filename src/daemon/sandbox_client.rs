//! The runtime's interface to a pod's sandbox: the process, or later the virtual machine, that
//! holds the pod's containers.
//!
//! `runtime` reaches a sandbox through [`SandboxClient`] alone. Each kind of sandbox is a variant;
//! the compiler lists what a new kind must implement. The only kind today is a shim process on the
//! host ([`crate::shim`]).

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use model::{ContainerId, Signal};
use shim_protocol::{
    AttachRequest, ContainerReport, CreateRequest, ExecRequest, ExecStreamRequest, LaunchWarning, LaunchWarningKind,
    LogPath, Request, Response, Sandbox, SandboxRequest,
};
use tokio::sync::{mpsc, oneshot};

pub(crate) use crate::sandbox::{STOP_TIMEOUT, SandboxError, SandboxEvent};
use crate::shim::{ShimClient, pid_file};
pub(crate) use crate::shim::{ShimProgram, SpawnError};

/// A connection to a sandbox, shared by its clones.
#[derive(Debug, Clone)]
pub(crate) enum SandboxClient {
    Shim(ShimClient),
}

impl SandboxClient {
    /// Starts the sandbox of the pod whose directory is `dir`.
    pub(crate) fn spawn(program: &ShimProgram, dir: &Path) -> Result<(), SpawnError> {
        program.spawn(dir)
    }

    /// Connects to the sandbox of the pod whose directory is `dir`.
    pub(crate) async fn connect(dir: &Path, events: mpsc::UnboundedSender<SandboxEvent>) -> Result<Self, SandboxError> {
        ShimClient::connect(&dir.join("shim.sock"), events).await.map(Self::Shim)
    }

    /// Returns the process of the sandbox, unless it is known to have exited.
    pub(crate) fn pid(dir: &Path) -> Option<u32> {
        pid_file::pid(dir)
    }

    /// Returns whether the process of the sandbox is known to run.
    pub(crate) fn is_alive(dir: &Path) -> bool {
        pid_file::is_alive(dir)
    }

    /// Kills the process of the sandbox and waits for its exit. Blocks.
    pub(crate) fn kill(dir: &Path) {
        pid_file::end(dir);
    }

    /// Creates the namespaces that the pod's containers share.
    pub(crate) async fn create_sandbox(&self, request: SandboxRequest) -> Result<Sandbox, SandboxError> {
        match self.call(Request::CreateSandbox(request), &[]).await? {
            Response::SandboxCreated(sandbox) => Ok(sandbox),
            _ => Err(SandboxError::Mismatch),
        }
    }

    /// Creates a container from the configuration in its directory. Returns its first process and
    /// the settings that the host could not apply.
    pub(crate) async fn create_container(
        &self,
        request: CreateRequest,
        log: Option<BorrowedFd<'_>>,
    ) -> Result<(u32, Vec<LaunchWarning>), SandboxError> {
        match self.call(Request::Create(request), log.as_slice()).await? {
            Response::Created { pid, warnings, launch_warnings } if launch_warnings.is_empty() => {
                Ok((pid, warnings.into_iter().map(|message| LaunchWarningKind::Other.warning(message)).collect()))
            }
            Response::Created { pid, warnings: _, launch_warnings } => Ok((pid, launch_warnings)),
            _ => Err(SandboxError::Mismatch),
        }
    }

    pub(crate) async fn start_container(&self, container: ContainerId) -> Result<(), SandboxError> {
        self.notify(Request::Start { container }, &[]).await
    }

    /// Sends a signal to the container's first process. Succeeds if the process has exited.
    pub(crate) async fn signal_container(&self, container: ContainerId, signal: Signal) -> Result<(), SandboxError> {
        self.notify(Request::Signal { container, signal: signal.number() }, &[]).await
    }

    /// Returns whether the sandbox opens logs and creates mount sources; otherwise the daemon does.
    pub(crate) fn opens_paths(&self) -> bool {
        match self {
            Self::Shim(shim) => shim.opens_paths(),
        }
    }

    /// Continues the container's log in another file, by its path, or with the open file for a
    /// sandbox that does not open logs.
    pub(crate) async fn reopen_log(
        &self,
        container: ContainerId,
        log: Option<LogPath>,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), SandboxError> {
        self.notify(Request::Reopen { container, log }, file.as_slice()).await
    }

    /// Kills the container's processes and removes it from the sandbox.
    pub(crate) async fn remove_container(&self, container: ContainerId) -> Result<(), SandboxError> {
        self.notify(Request::RemoveContainer { container }, &[]).await
    }

    /// Returns the state of every container in the sandbox.
    pub(crate) async fn state(&self) -> Result<Vec<ContainerReport>, SandboxError> {
        match self.call(Request::State, &[]).await? {
            Response::State { containers, .. } => Ok(containers),
            _ => Err(SandboxError::Mismatch),
        }
    }

    /// Kills all processes of the pod and the sandbox.
    pub(crate) async fn shutdown(&self) -> Result<(), SandboxError> {
        self.notify(Request::Shutdown, &[]).await
    }

    /// Reserves a number for an exec, and returns a receiver of its exit code. An error there means
    /// that the sandbox has ended.
    pub(crate) fn expect_exec(&self) -> (u64, oneshot::Receiver<i32>) {
        match self {
            Self::Shim(shim) => shim.expect_exec(),
        }
    }

    pub(crate) fn forget_exec(&self, exec: u64) {
        match self {
            Self::Shim(shim) => shim.forget_exec(exec),
        }
    }

    /// Executes a command that ends with the daemon. `stdio` has the descriptors that the request
    /// names, in order.
    pub(crate) async fn exec(&self, request: ExecRequest, stdio: &[BorrowedFd<'_>]) -> Result<(), SandboxError> {
        match self.call(Request::Exec(request), stdio).await? {
            Response::ExecStarted { .. } => Ok(()),
            _ => Err(SandboxError::Mismatch),
        }
    }

    /// Executes a command for a streaming client; it is not killed when the daemon exits.
    pub(crate) async fn exec_stream(&self, request: ExecStreamRequest, stdio: &[OwnedFd]) -> Result<(), SandboxError> {
        let stdio: Vec<_> = stdio.iter().map(|fd| fd.as_fd()).collect();
        match self.call(Request::ExecStream(request), &stdio).await? {
            Response::ExecStarted { .. } => Ok(()),
            _ => Err(SandboxError::Mismatch),
        }
    }

    /// Kills the process of an exec and its descendants.
    pub(crate) async fn kill_exec(&self, exec: u64) -> Result<(), SandboxError> {
        self.notify(Request::KillExec { exec }, &[]).await
    }

    /// Attaches a client to a container's streams; `socket` carries
    /// [`shim_protocol::AttachFrame`]s.
    pub(crate) async fn attach(&self, request: AttachRequest, socket: BorrowedFd<'_>) -> Result<(), SandboxError> {
        self.notify(Request::Attach(request), &[socket]).await
    }

    async fn call(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<Response, SandboxError> {
        match self {
            Self::Shim(shim) => shim.call(request, fds).await,
        }
    }

    async fn notify(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<(), SandboxError> {
        match self {
            Self::Shim(shim) => shim.notify(request, fds).await,
        }
    }
}
