//! The shim's record of a container.

use std::fs::File;
use std::io::{self, Write as _};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cgroup_procs::{CgroupDirs, Freezer, FreezerState};
use launcher::io::stdio::Streams;
use model::{ContainerState, Exit};
use nix::unistd::Pid;
use shim_protocol::{LaunchConfig, LaunchWarning, ShimErrorKind};

use crate::server::log_reopen::LogReopening;
use crate::server::poststart_hooks::PoststartHooks;

/// How long the shim waits for killed processes; it serves no other container meanwhile.
const KILL_WITHIN: Duration = Duration::from_millis(100);

/// The connection and request that wait for a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) connection: u64,
    pub(crate) number: u64,
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) dir: PathBuf,
    pub(crate) launch: LaunchConfig,
    pub(crate) streams: Streams,
    pub(crate) state: State,
    pub(crate) lost: DroppedOutput,
    /// The time until which its output is not read, since it is over the rate of its log.
    pub(crate) paused: Option<Instant>,
    /// Hooks in progress; StartContainer is answered after them.
    pub(crate) poststart: Option<PoststartHooks>,
    pub(crate) reopening: Option<LogReopening>,
}

/// Output that could not be logged and is not reported yet.
#[derive(Debug, Default)]
pub(crate) struct DroppedOutput {
    pub(crate) bytes: u64,
    pub(crate) error: String,
    pub(crate) reported: Option<Instant>,
}

/// The state of a container, with what the shim needs until the program runs.
#[derive(Debug)]
pub(crate) enum State {
    Unstarted(Unstarted),
    /// Running or exited.
    Settled(ContainerState),
}

/// A container whose program does not run yet.
#[derive(Debug)]
pub(crate) struct Unstarted {
    /// Closes when the program runs; before that, it carries the reason why it does not.
    pub(crate) started: OwnedFd,
    /// A byte written here starts the program. `None` in a created container: libcontainer starts
    /// it.
    pub(crate) go: Option<OwnedFd>,
    pub(crate) stage: Stage,
}

#[derive(Debug)]
pub(crate) enum Stage {
    Launching(Launching),
    Created { pid: NonZeroU32 },
    Starting { pid: NonZeroU32, caller: Caller },
}

#[derive(Debug)]
pub(crate) struct Launching {
    pub(crate) caller: Caller,
    pub(crate) launcher: Pid,
    pub(crate) report: OwnedFd,
    /// libcontainer's messages, in case it fails.
    pub(crate) trace: Vec<String>,
    /// The settings that the launch could not apply.
    pub(crate) warnings: Vec<LaunchWarning>,
    /// The failure that crisp's own stages reported, which has more detail than libcontainer's
    /// messages.
    pub(crate) failure: Option<(ShimErrorKind, String)>,
    /// `failure` is the cause of all that libcontainer reports.
    pub(crate) hook_gate_failed: bool,
}

impl Container {
    /// Returns the state for the daemon; `None` during the launch, before the container exists.
    pub(crate) fn state_report(&self) -> Option<ContainerState> {
        match &self.state {
            State::Unstarted(Unstarted { stage: Stage::Launching(_), .. }) => None,
            State::Unstarted(Unstarted { stage: Stage::Created { pid } | Stage::Starting { pid, .. }, .. }) => {
                Some(ContainerState::Created { pid: *pid })
            }
            State::Settled(state) => Some(state.clone()),
        }
    }

    /// Returns the launch if it has not finished.
    pub(crate) fn launching(&self) -> Option<&Launching> {
        match &self.state {
            State::Unstarted(Unstarted { stage: Stage::Launching(launching), .. }) => Some(launching),
            State::Unstarted(_) | State::Settled(_) => None,
        }
    }

    /// Whether StartContainer was requested and its program does not run yet.
    pub(crate) fn is_starting(&self) -> bool {
        matches!(&self.state, State::Unstarted(Unstarted { stage: Stage::Starting { .. }, .. }))
    }

    /// Returns the pid of the first process while it runs.
    pub(crate) fn pid(&self) -> Option<NonZeroU32> {
        self.state_report().and_then(|phase| phase.pid())
    }

    pub(crate) fn was_oom_killed(&self) -> bool {
        self.launch.cgroup.oom.as_deref().and_then(cgroup_procs::oom_kills).is_some_and(|kills| kills > 0)
    }

    /// The directories of its cgroup, in which it may have created others.
    fn cgroup(&self) -> CgroupDirs {
        CgroupDirs::of_join_files(&self.launch.cgroup.join)
    }

    /// The processes in the container's cgroup.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let pids = self.cgroup().procs().unwrap_or_default();
        pids.into_iter().filter_map(|pid| pid.get().try_into().ok()).collect()
    }

    /// Whether its cgroup is frozen or is being frozen: a new process would be frozen before its program runs.
    pub(crate) fn is_frozen(&self) -> bool {
        self.cgroup().freezer_state().is_ok_and(|state| state != FreezerState::Thawed)
    }

    /// Thaws a container that is frozen by version 1, whose frozen processes do not exit; returns
    /// whether it was frozen.
    pub(crate) fn thaw(&self) -> bool {
        let cgroup = self.cgroup();
        let frozen = matches!(cgroup.freezer, Some(Freezer::V1(_)))
            && cgroup.freezer_state().is_ok_and(|state| state != FreezerState::Thawed);
        // A cgroup that an ancestor freezes stays frozen; the next round tries again.
        frozen && cgroup.thaw_all().is_ok()
    }

    /// Kills the processes that the first one left: in a PID namespace that others share, they do not exit with it.
    pub(crate) fn kill_rest(&self) {
        // The daemon kills those that are left when it removes the cgroup.
        self.cgroup().kill_all(KILL_WITHIN).ok();
    }

    /// Keeps the exit where the daemon finds it even when the shim is gone.
    pub(crate) fn write_exit(&self, exit: &Exit) -> io::Result<()> {
        let (temporary, file) = (self.dir.join(".exit.json"), self.dir.join("exit.json"));
        File::create(&temporary)?.write_all(&serde_json::to_vec(exit)?)?;
        std::fs::rename(temporary, file)
    }
}
