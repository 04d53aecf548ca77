//! Creates a container: the launcher, a short-lived child of the shim, calls libcontainer.
//!
//! The launcher has a mount namespace of its own, so the container's root file system is never
//! mounted on the host and is unmounted with the container. All that libcontainer changes in the
//! process that calls it (working directory, dumpable flag, memory) ends with the launcher. The
//! container's first process becomes a child of the shim.

pub(crate) mod cgroup_join;
pub mod client_paths;
mod create;
pub mod hook_gate;
mod join_user_ns;
pub(crate) mod libcontainer_executor;
mod libcontainer_spec;
mod minimal_mounts;
pub mod report;
mod shared_pid_ns;
mod shared_stage;
pub mod start;

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::unistd::Pid;
use shim_protocol::{CreateRequest, LaunchConfig, ShimErrorKind};
use sys::fork::SingleThread;

use crate::StepError;
use crate::launch::create::CreatedProcess;
use crate::launch::report::{Report, send, truncate};

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("reading the container's {file}: {source}")]
    Read { file: &'static str, source: io::Error },
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Stage(#[from] crate::rootfs::mounts::MountError),
    #[error(transparent)]
    Node(#[from] crate::rootfs::device_nodes::NodeError),
    #[error("{0}")]
    Split(#[from] crate::launch::libcontainer_spec::SpecError),
    #[error("creating the container with libcontainer: {0}")]
    Libcontainer(String),
    #[error("the container's config.json, which crisp wrote, has no {0}; please report this bug")]
    Lacks(&'static str),
    #[error("cannot create the container: /{0} of its image is a link or file, must be a directory")]
    NotADirectory(&'static str),
    #[error(transparent)]
    Path(#[from] client_paths::PathError),
}

impl LaunchError {
    fn kind(&self) -> ShimErrorKind {
        match self {
            Self::Path(error) => error.kind(),
            Self::Read { .. }
            | Self::Step(_)
            | Self::Stage(_)
            | Self::Node(_)
            | Self::Split(_)
            | Self::Libcontainer(_)
            | Self::Lacks(_)
            | Self::NotADirectory(_) => ShimErrorKind::Refused,
        }
    }
}

/// The container's ends of its standard streams, and the launcher's connections to the shim.
#[derive(Debug)]
pub struct ContainerStdio {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) channels: LaunchChannels,
}

/// The launcher's ends of its connections to the shim.
#[derive(Debug)]
pub struct LaunchChannels {
    /// The socket for [`Report`]s.
    pub report: OwnedFd,
    /// Closes when the program runs; before that, it carries the reason why it does not.
    pub started: OwnedFd,
    /// A first process that shares a PID namespace waits here for its start.
    pub go: OwnedFd,
}

/// Starts the launcher, which gets `config` by the fork. Its result arrives at
/// [`LaunchChannels::report`]. `pod_proc` is a mount namespace whose root is the proc file system
/// of the pod's PID namespace, if it has one.
pub fn launch(
    request: &CreateRequest,
    config: &LaunchConfig,
    stdio: ContainerStdio,
    pod_proc: Option<BorrowedFd<'_>>,
) -> io::Result<Pid> {
    sys::fork::fork(SingleThread::check()?, move || {
        let ContainerStdio { stdin, stdout, stderr, channels } = &stdio;
        let LaunchChannels { report, started, go } = channels;
        let mut keep: Vec<_> = [stdin, stdout, stderr, report, started, go].map(|fd| fd.as_fd()).into();
        keep.extend(pod_proc);
        let report = match sys::fork::close_all_but(&keep).and_then(|()| report.try_clone()) {
            Ok(report) => report,
            Err(_) => return 1,
        };
        match create::run(request, config, stdio, pod_proc) {
            Ok(CreatedProcess { pid, warnings, waits }) => {
                send(&report, &Report::Created { pid, warnings, waits }, &[]);
                0
            }
            Err(error) => {
                send(&report, &Report::Refused { kind: error.kind(), message: truncate(error.to_string()) }, &[]);
                1
            }
        }
    })
}

/// Sets a score through an open `oom_score_adj`. The shim's own score, with which the kernel kills
/// it last, is not for containers.
pub(crate) fn set_oom_score(mut file: File, score: i32) -> io::Result<()> {
    let now = io::read_to_string(&file)?;
    if now.trim() == score.to_string() { Ok(()) } else { file.write_all(score.to_string().as_bytes()) }
}

pub fn read<T: serde::de::DeserializeOwned>(dir: &Path, file: &'static str) -> Result<T, LaunchError> {
    let failed = |source| LaunchError::Read { file, source };
    let bytes = std::fs::read(dir.join(file)).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|e| failed(e.into()))
}
