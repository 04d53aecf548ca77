//! The shim's record of a container.

use std::fs::File;
use std::io::{self, Write as _};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Instant;

use launcher::io::stdio::Streams;
use model::{ContainerState, Exit};
use nix::unistd::Pid;
use shim_protocol::{LaunchConfig, LaunchWarning, ShimErrorKind};

use crate::server::log_reopen::LogReopening;
use crate::server::poststart_hooks::PoststartHooks;

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

    /// How often the kernel's out-of-memory killer came.
    pub(crate) fn oom_kills(&self) -> u64 {
        let Some(file) = &self.launch.cgroup.oom else { return 0 };
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().find_map(|l| l.strip_prefix("oom_kill ")).and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    }

    /// The processes in the container's cgroup.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let Some(file) = self.launch.cgroup.join.first() else { return Vec::new() };
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().filter_map(|l| l.parse().ok()).collect()
    }

    /// Whether all of its processes are frozen: a new one would be frozen, too, before its program
    /// runs.
    pub(crate) fn is_frozen(&self) -> bool {
        self.launch.cgroup.join.iter().any(|file| {
            let read = |name| std::fs::read_to_string(file.with_file_name(name)).unwrap_or_default();
            // Version 1 has one file, version 2 two: the written state and the actual one, also
            // because of an ancestor.
            let state = read("freezer.state");
            (!state.is_empty() && !state.starts_with("THAWED"))
                || read("cgroup.freeze").starts_with('1')
                || read("cgroup.events").lines().any(|line| line == "frozen 1")
        })
    }

    /// Thaws the container's own cgroup where that is frozen by version 1, whose frozen processes
    /// do not die; returns whether it was frozen.
    pub(crate) fn thaw(&self) -> bool {
        let files = self.launch.cgroup.join.iter().map(|file| file.with_file_name("freezer.state"));
        let frozen = |file: &std::path::PathBuf| {
            std::fs::read_to_string(file).is_ok_and(|state| !state.is_empty() && !state.starts_with("THAWED"))
        };
        // A cgroup that an ancestor freezes stays frozen; the next round tries again.
        files.filter(frozen).filter(|file| std::fs::write(file, "THAWED").is_ok()).count() > 0
    }

    /// Kills whatever the first process left behind: in a PID namespace that others share, it does
    /// not die by itself.
    pub(crate) fn kill_rest(&self) {
        for file in &self.launch.cgroup.join {
            // Version 2 does it at once, and below too; where the file is missing, the rounds below
            // have to do.
            let at_once = file.with_file_name("cgroup.kill");
            if at_once.exists() {
                std::fs::write(at_once, "1").ok();
            }
        }
        for _ in 0..100 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for pid in left.into_iter().filter(|pid| *pid > 1) {
                // The process may be gone already.
                sys::signal::send(pid, 9).ok();
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Keeps the exit where the daemon finds it even when the shim is gone.
    pub(crate) fn write_exit(&self, exit: &Exit) -> io::Result<()> {
        let (temporary, file) = (self.dir.join(".exit.json"), self.dir.join("exit.json"));
        File::create(&temporary)?.write_all(&serde_json::to_vec(exit)?)?;
        std::fs::rename(temporary, file)
    }
}
