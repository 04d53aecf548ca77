//! Requests, responses and events.

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
    /// Creates the pod's namespaces. Once in the life of a shim.
    CreateSandbox(SandboxRequest),
    /// Creates a container, without executing its program. Descriptor: the log file, if it has one and
    /// [`crate::LaunchConfig::log`] does not name it.
    Create(CreateRequest),
    /// Executes the program of a created container.
    Start { container: ContainerId },
    /// Sends a signal to the container's first process. No error when that has exited.
    Signal { container: ContainerId, signal: i32 },
    /// Executes a program in a running container. Descriptors: see [`ExecRequest::stdio`].
    Exec(ExecRequest),
    /// The same for a streaming client: when the daemon ends, the program is not killed; its streams close.
    ExecStream(ExecStreamRequest),
    /// Kills the process of an exec and its descendants.
    KillExec { exec: u64 },
    /// Attaches to the streams of a running container. Descriptor: a seqpacket socket, see [`AttachFrame`].
    Attach(AttachRequest),
    /// Switches to another log file, which the shim has opened. Descriptor, where `log` is none: the file.
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

/// What a pod needs before its first container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxRequest {
    /// The pod's directory; the namespaces are pinned in it.
    pub dir: PathBuf,
    pub namespaces: PodNamespaces,
    /// The ids of a user namespace of the pod's own, which then owns all the others; none: the host's.
    #[serde(default)]
    pub user: Option<UserNs>,
    /// Set in the new UTS namespace.
    pub hostname: String,
    /// Written in the new namespaces, in the kernel's spelling with dots.
    pub sysctls: BTreeMap<String, String>,
    /// Size of the pod's `/dev/shm` in bytes.
    pub shm_size: u64,
    /// The SELinux label of what is in there.
    #[serde(default)]
    pub mount_label: Option<String>,
    /// The score the shim itself takes, so that it is not the first to go when memory ends.
    pub oom_score_adj: i32,
}

/// Which namespaces the pod has for itself; the others are the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNamespaces {
    pub network: bool,
    pub ipc: bool,
    pub uts: bool,
    /// One PID namespace for all containers, with an init of the shim's in it.
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
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecStreamRequest {
    pub exec: ExecRequest,
    /// In a terminal of its own. Then no stream comes along, but one socket of packets, on which the terminal's master side
    /// is sent before the program runs.
    pub terminal: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttachRequest {
    pub container: ContainerId,
    /// Which of its streams; a terminal is all three.
    pub stdio: Stdio,
}

/// The first byte of a packet on the socket of an attached client. Either side closes the socket to end it. A shim that
/// closes it without [`AttachFrame::End`] disconnected a client that did not read in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachFrame {
    /// From the shim, with what the container printed.
    Stdout,
    Stderr,
    /// From the shim: a descriptor to write the container's stdin to; of a terminal its master side.
    Stdin,
    /// From the daemon: the client closed stdin. From the shim: another client closed it; close the descriptor.
    Closed,
    /// From the shim: nothing will be printed any more.
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

/// Which descriptors come with an exec, in this order.
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
        /// It opens logs and makes the sources of mounts.
        #[serde(default)]
        opens_paths: bool,
    },
    SandboxCreated(Sandbox),
    /// The container's first process waits for its start. `warnings` name the settings that this host could not apply.
    Created {
        pid: u32,
        warnings: Vec<String>,
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

/// Where the pod's namespaces can be entered.
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
    /// A container's first process ended, and all it printed is in the log.
    Exited {
        container: ContainerId,
        exit: Exit,
    },
    ExecExited {
        exec: u64,
        code: i32,
    },
    /// Output was lost since its log could not be written.
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
    /// The container's program could not be executed: its own fault.
    Program,
    /// A field of the request cannot be used on this host.
    Invalid,
    /// The host cannot fulfil the request.
    Refused,
    /// The host has no room for another process, or no memory.
    Exhausted,
    /// The shim does not know the request.
    Unsupported,
    /// Anything else.
    #[serde(other)]
    Internal,
}
