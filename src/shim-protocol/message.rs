//! Asks, answers and events.

use std::collections::BTreeMap;
use std::path::PathBuf;

use model::{ContainerId, ContainerState, Exit, UserNs};
use serde::{Deserialize, Serialize};

/// From the daemon: an ask under a number that the answer repeats.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShimRequest {
    pub number: u64,
    pub ask: Request,
}

/// From the shim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimMessage {
    Answer { number: u64, answer: Result<Response, ShimError> },
    Event(Event),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Always first on a connection.
    Hello { protocol: u32, release: String },
    /// Make what holds the pod together. Once in a shim's life.
    CreateSandbox(SandboxRequest),
    /// Make a container, up to the point where only its program is missing. Descriptor: the log file, if it has one.
    Create(CreateRequest),
    /// Let a created container run its program.
    Start { container: ContainerId },
    /// Send a signal to the container's first process; nothing happens when it has ended.
    Signal { container: ContainerId, signal: i32 },
    /// Run one more program in a running container. Descriptors: as [`ExecRequest::stdio`] says.
    Exec(ExecRequest),
    /// The same for somebody who looks on: when the daemon ends, nobody kills the program, which notices by its streams.
    ExecStream(ExecStreamRequest),
    /// Kill an exec and everything it started.
    KillExec { exec: u64 },
    /// Take part in a running container's streams. Descriptor: a socket of packets, see [`AttachFrame`].
    Attach(AttachRequest),
    /// Go on logging to another file. Descriptor: the file.
    Reopen { container: ContainerId },
    /// Kill what is left of a container and forget it.
    RemoveContainer { container: ContainerId },
    /// Tell all that is known.
    State,
    /// Kill everything and end.
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
    /// Chosen by the daemon; the exit is told under it.
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

/// The first byte of a packet between daemon and shim on the socket of somebody who attached. Either side hangs up to end it;
/// a shim that does so without having said [`AttachFrame::End`] found the other too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachFrame {
    /// From the shim, with what the container printed.
    Stdout,
    Stderr,
    /// From the shim: a descriptor to write the container's stdin to; of a terminal its master side.
    Stdin,
    /// From the daemon: whoever attached has closed stdin. From the shim: somebody did, so close the descriptor.
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
        [Self::Stdin, Self::Stdout, Self::Stderr, Self::Closed, Self::End].into_iter().find(|word| word.byte() == byte)
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
    },
    Held(Sandbox),
    /// The container's first process waits for its start. `warnings` are wishes that this host could not fulfil.
    Created {
        pid: u32,
        warnings: Vec<String>,
    },
    ExecStarted {
        pid: u32,
    },
    Report {
        held: Option<Sandbox>,
        containers: Vec<ContainerReport>,
    },
    Done,
}

/// Where the pod's namespaces can be entered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Older records and shims do not have it.
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
    pub phase: ContainerState,
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

/// An ask that came to nothing.
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
    /// Not now: the container is in another phase.
    Phase,
    /// The container's program could not be executed: its own fault.
    Program,
    /// The ask itself cannot be fulfilled on this host.
    Refused,
    /// This shim does not know the ask.
    Unsupported,
    /// Anything else.
    #[serde(other)]
    Internal,
}
