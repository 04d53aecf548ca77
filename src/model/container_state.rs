//! The state machine of a container.

use std::num::NonZeroU32;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// The exit of a container's first process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit status, or 128 + the number of the signal that killed it.
    pub code: i32,
    pub at: SystemTime,
    /// Whether the kernel's OOM killer killed a process in the container's cgroup.
    pub oom: bool,
    /// The reason why it never ran or was lost, if the exit status does not show it.
    pub abnormal: Option<AbnormalExit>,
}

impl Exit {
    /// Returns the reason that CRI reports, in one word.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match (&self.abnormal, self.oom, self.code) {
            (Some(AbnormalExit::Start(_)), _, _) => "StartError",
            (Some(AbnormalExit::Lost(_)), _, _) => "ShimLost",
            (None, true, _) => "OOMKilled",
            (None, false, 0) => "Completed",
            (None, false, _) => "Error",
        }
    }

    /// Returns more about an exit that the program did not cause.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        match self.abnormal.as_ref()? {
            AbnormalExit::Start(why) | AbnormalExit::Lost(why) => Some(why),
        }
    }
}

/// An exit that the container's program did not cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbnormalExit {
    /// The program could not be executed.
    Start(String),
    /// The pod's shim died, and the container with it.
    Lost(String),
}

/// The state of a container; ARCHITECTURE.md has the transitions. Starting and removing are not
/// states: the container's lock is held meanwhile. CRI's CONTAINER_UNKNOWN is never reported:
/// docs/recovery.md has the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    Created { pid: NonZeroU32 },
    Running { pid: NonZeroU32, started: SystemTime },
    Exited { started: Option<SystemTime>, exit: Exit },
}

/// A transition that the state does not allow.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the container is {is}, so it cannot {cannot}")]
pub struct WrongState {
    pub is: &'static str,
    pub cannot: &'static str,
}

impl ContainerState {
    /// Returns the state after the start: Created → Running.
    pub fn start(&self, now: SystemTime) -> Result<ContainerState, WrongState> {
        match self {
            ContainerState::Created { pid } => Ok(ContainerState::Running { pid: *pid, started: now }),
            ContainerState::Running { .. } | ContainerState::Exited { .. } => {
                Err(WrongState { is: self.name(), cannot: "start" })
            }
        }
    }

    /// Returns the state after an exit: any state → Exited. The first reported exit is kept.
    #[must_use]
    pub fn exit(&self, exit: Exit) -> ContainerState {
        match self {
            ContainerState::Created { .. } => ContainerState::Exited { started: None, exit },
            // The start may be recorded late; it must not be later than the exit.
            ContainerState::Running { started, .. } => {
                ContainerState::Exited { started: Some(exit.at.min(*started)), exit }
            }
            ContainerState::Exited { .. } => self.clone(),
        }
    }

    /// Returns the pid of the first process while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<NonZeroU32> {
        match self {
            ContainerState::Created { pid } | ContainerState::Running { pid, .. } => Some(*pid),
            ContainerState::Exited { .. } => None,
        }
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ContainerState::Created { .. } => "created",
            ContainerState::Running { .. } => "running",
            ContainerState::Exited { .. } => "exited",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> Exit {
        Exit { code, at: SystemTime::UNIX_EPOCH, oom: false, abnormal: None }
    }

    #[test]
    fn only_a_created_container_starts() {
        let pid = NonZeroU32::new(7).unwrap();
        let created = ContainerState::Created { pid };
        let running = created.start(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(running, ContainerState::Running { pid, started: SystemTime::UNIX_EPOCH });
        for phase in [running.clone(), running.exit(exit(0))] {
            assert!(phase.start(SystemTime::UNIX_EPOCH).is_err(), "{phase:?}");
        }
    }

    #[test]
    fn the_first_exit_is_kept() {
        let pid = NonZeroU32::new(7).unwrap();
        let first = ContainerState::Created { pid }.exit(exit(3));
        assert_eq!(first, ContainerState::Exited { started: None, exit: exit(3) });
        assert_eq!(first.exit(exit(4)), first);
        assert_eq!(first.pid(), None);
    }

    #[test]
    fn a_start_recorded_late_is_not_after_the_exit() {
        let late = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
        let running = ContainerState::Running { pid: NonZeroU32::new(7).unwrap(), started: late };
        assert_eq!(
            running.exit(exit(0)),
            ContainerState::Exited { started: Some(SystemTime::UNIX_EPOCH), exit: exit(0) }
        );
    }
}
