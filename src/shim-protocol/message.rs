//! The messages between daemon and shim: requests, responses and events.

use std::collections::BTreeMap;
use std::path::PathBuf;

use model::{ContainerId, ContainerState, Exit, UserNs};
use serde::{Deserialize, Serialize};

use crate::LogPath;

/// A request of the daemon. The response repeats its number.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShimRequest {
    pub number: u64,
    pub request: Request,
}

/// A message of the shim: a response or an event.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimMessage {
    Response { number: u64, result: Result<Response, ShimError> },
    Event(Event),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The first request on a connection.
    Hello { protocol: u32, release: String },
    /// Creates the pod's namespaces. At most once per shim.
    CreateSandbox(SandboxRequest),
    /// Creates a container, without executing its program. Descriptor: the log file, if it has one and
    /// [`crate::LaunchConfig::log`] does not name it.
    Create(CreateRequest),
    /// Executes the program of a created container.
    Start { container: ContainerId },
    /// Sends a signal to the container's first process. Not an error if that has exited.
    Signal { container: ContainerId, signal: i32 },
    /// Executes a program in a running container. Descriptors: see [`ExecRequest::stdio`].
    Exec(ExecRequest),
    /// The same for a streaming client: if the daemon exits, the program is not killed; its streams
    /// are closed.
    ExecStream(ExecStreamRequest),
    /// Kills the process of an exec and its descendants.
    KillExec { exec: u64 },
    /// Attaches to the streams of a running container. Descriptor: a seqpacket socket, see [`AttachFrame`].
    Attach(AttachRequest),
    /// Switches to another log file. Descriptor, if `log` is `None`: the file.
    Reopen {
        container: ContainerId,
        #[serde(default)]
        log: Option<LogPath>,
    },
    /// Kills the processes of a container and removes it from the shim.
    RemoveContainer { container: ContainerId },
    /// Returns the sandbox and the state of every container.
    State,
    /// Kills all processes of the pod and exits.
    Shutdown,
}

/// The configuration of a pod's sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxRequest {
    /// The pod's directory; the namespaces are pinned in it.
    pub dir: PathBuf,
    pub namespaces: PodNamespaces,
    /// The ids of the pod's own user namespace, which owns all the others; `None` is the host's.
    #[serde(default)]
    pub user: Option<UserNs>,
    /// Set in the new UTS namespace.
    pub hostname: String,
    /// Sysctls for the new namespaces, with names in the kernel's format with dots.
    pub sysctls: BTreeMap<String, String>,
    /// Size of the pod's `/dev/shm` in bytes.
    pub shm_size: u64,
    /// The SELinux label of the files in it.
    #[serde(default)]
    pub mount_label: Option<String>,
    /// The OOM score adjustment of the shim itself, so that it is not killed first.
    pub oom_score_adj: i32,
}

/// The namespaces that the pod has for itself; the others are the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNamespaces {
    pub network: bool,
    pub ipc: bool,
    pub uts: bool,
    /// One PID namespace for all containers, with an init process of the shim.
    pub pid: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CreateRequest {
    pub container: ContainerId,
    /// Has `config.json` (OCI) and `launch.json` ([`crate::LaunchConfig`]).
    pub dir: PathBuf,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecRequest {
    pub container: ContainerId,
    /// Chosen by the daemon. [`Event::ExecExited`] repeats it.
    pub exec: u64,
    pub args: Vec<String>,
    pub stdio: Stdio,
    /// The OOM score adjustment of the program. An older daemon does not send it: the program has the
    /// score of the creation.
    #[serde(default)]
    pub oom_score_adj: Option<i32>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecStreamRequest {
    pub exec: ExecRequest,
    /// Run it in a new terminal. The request then has no streams, but one socket, on which the
    /// terminal's master is sent before the program runs.
    pub terminal: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttachRequest {
    pub container: ContainerId,
    /// The streams to attach to; a terminal is all three.
    pub stdio: Stdio,
}

/// The first byte of a packet on the socket of an attached client. Either side closes the socket to
/// end it. If the shim closes it without [`AttachFrame::End`], it disconnected a client that read
/// too slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachFrame {
    /// From the shim: output of the container.
    Stdout,
    Stderr,
    /// From the shim: a descriptor for the container's stdin; for a terminal, its master.
    Stdin,
    /// From the daemon: the client closed stdin. From the shim: another client closed it; close the
    /// descriptor.
    Closed,
    /// From the shim: the end of the output.
    End,
}

impl AttachFrame {
    #[must_use]
    pub fn byte(self) -> u8 {
        match self {
            Self::Stdin => 0,
            Self::Stdout => 1,
            Self::Stderr => 2,
            Self::Closed => 3,
            Self::End => 4,
        }
    }

    #[must_use]
    pub fn read(byte: u8) -> Option<Self> {
        [Self::Stdin, Self::Stdout, Self::Stderr, Self::Closed, Self::End]
            .into_iter()
            .find(|frame| frame.byte() == byte)
    }
}

/// The descriptors of an exec, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stdio {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    Hello {
        protocol: u32,
        release: String,
        pid: u32,
        /// The shim opens logs and creates the sources of mounts.
        #[serde(default)]
        opens_paths: bool,
    },
    SandboxCreated(Sandbox),
    /// The container's first process waits for Start.
    Created {
        pid: u32,
        /// The messages of `launch_warnings`, for a daemon that does not know that field.
        warnings: Vec<String>,
        /// The settings that this host could not apply. An older shim sends only `warnings`.
        #[serde(default)]
        launch_warnings: Vec<LaunchWarning>,
    },
    ExecStarted {
        pid: u32,
    },
    State {
        sandbox: Option<Sandbox>,
        containers: Vec<ContainerReport>,
    },
    Done,
}

/// A setting of a container that the host could not apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchWarning {
    pub kind: LaunchWarningKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchWarningKind {
    /// The OOM score adjustment is not the requested one.
    OomScoreAdj,
    /// A resource limit is lower than requested.
    Rlimit,
    /// The container has no session keyring.
    Keyring,
    /// Mounts below the source of a mount have the ids of the host.
    IdMap,
    /// Anything else, such as a kind of a newer shim.
    #[serde(other)]
    Other,
}

impl LaunchWarningKind {
    pub fn warning(self, message: impl Into<String>) -> LaunchWarning {
        LaunchWarning { kind: self, message: message.into() }
    }
}

impl Response {
    /// Returns the response to [`Request::Create`].
    #[must_use]
    pub fn created(pid: u32, launch_warnings: Vec<LaunchWarning>) -> Self {
        let warnings = launch_warnings.iter().map(|warning| warning.message.clone()).collect();
        Self::Created { pid, warnings, launch_warnings }
    }
}

/// The paths of the pod's namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    #[serde(default)]
    pub user: Option<PathBuf>,
    pub network: Option<PathBuf>,
    pub ipc: Option<PathBuf>,
    pub uts: Option<PathBuf>,
    pub pid: Option<PathBuf>,
    /// The mounted `/dev/shm` of the pod.
    pub shm: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerReport {
    pub container: ContainerId,
    pub state: ContainerState,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A container's first process exited, and all its output is in the log.
    Exited {
        container: ContainerId,
        exit: Exit,
    },
    ExecExited {
        exec: u64,
        code: i32,
    },
    /// Output was lost because the log could not be written.
    LogLost {
        container: ContainerId,
        bytes: u64,
        error: String,
    },
}

/// The reason why a request failed.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
#[error("{message}")]
pub struct ShimError {
    pub kind: ShimErrorKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimErrorKind {
    /// No such container or exec.
    NotFound,
    /// The container is in a state that does not allow the request.
    State,
    /// The container's program could not be executed; the fault is in the image or the request.
    Program,
    /// A field of the request is not supported on this host.
    Invalid,
    /// The host cannot fulfil the request.
    Refused,
    /// The host has no more processes or memory.
    Exhausted,
    /// The shim does not know the request.
    Unsupported,
    /// Anything else.
    #[serde(other)]
    Internal,
}
