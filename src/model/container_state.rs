//! The life of a container.

use std::num::NonZeroU32;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// How a container's first process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit status, or 128 + the signal that killed it.
    pub code: i32,
    pub at: SystemTime,
    /// The kernel's out-of-memory killer was at work in the container's cgroup.
    pub oom: bool,
    /// Why it never ran or was lost, where the exit status does not say it.
    pub abnormal: Option<AbnormalExit>,
}

/// An end that was not the program's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbnormalExit {
    /// The program could not be executed.
    Start(String),
    /// The process that watched over the pod died, and the container with it.
    Lost(String),
}

/// Something that could not be taken back and is tried again later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanupFailure {
    pub step: String,
    pub error: String,
}

/// Where a container stands.
///
/// ```text
///  Created ──start──▶ Running ──exit──▶ Exited ──remove──▶ (gone)
///     └───────exit (killed, or could not start)──▶┘
///  Unknown: found after a crash in a state nobody can vouch for; only stop and remove are left
/// ```
///
/// "Starting" and "removing" are no phases: they are the held work lock of the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    Created { pid: NonZeroU32 },
    Running { pid: NonZeroU32, started: SystemTime },
    Exited { started: Option<SystemTime>, exit: Exit },
    Unknown { left: Vec<CleanupFailure> },
}

/// The step does not exist from this phase.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the container is {is}, so it cannot {cannot}")]
pub struct WrongState {
    pub is: &'static str,
    pub cannot: &'static str,
}

impl ContainerState {
    /// Created → Running.
    pub fn start(&self, now: SystemTime) -> Result<ContainerState, WrongState> {
        match self {
            ContainerState::Created { pid } => Ok(ContainerState::Running { pid: *pid, started: now }),
            ContainerState::Running { .. } | ContainerState::Exited { .. } | ContainerState::Unknown { .. } => {
                Err(WrongState { is: self.name(), cannot: "start" })
            }
        }
    }

    /// Anything that had a process → Exited. The first exit told is the one that stays.
    #[must_use]
    pub fn exit(&self, exit: Exit) -> ContainerState {
        match self {
            ContainerState::Created { .. } | ContainerState::Unknown { .. } => {
                ContainerState::Exited { started: None, exit }
            }
            // Who heard of the start late must not have it begin after its end.
            ContainerState::Running { started, .. } => {
                ContainerState::Exited { started: Some(exit.at.min(*started)), exit }
            }
            ContainerState::Exited { .. } => self.clone(),
        }
    }

    /// The first process, while there is one.
    #[must_use]
    pub fn pid(&self) -> Option<NonZeroU32> {
        match self {
            ContainerState::Created { pid } | ContainerState::Running { pid, .. } => Some(*pid),
            ContainerState::Exited { .. } | ContainerState::Unknown { .. } => None,
        }
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ContainerState::Created { .. } => "created",
            ContainerState::Running { .. } => "running",
            ContainerState::Exited { .. } => "exited",
            ContainerState::Unknown { .. } => "unknown",
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
        for phase in [running.clone(), running.exit(exit(0)), ContainerState::Unknown { left: vec![] }] {
            assert!(phase.start(SystemTime::UNIX_EPOCH).is_err(), "{phase:?}");
        }
    }

    #[test]
    fn the_first_exit_stays() {
        let pid = NonZeroU32::new(7).unwrap();
        let first = ContainerState::Created { pid }.exit(exit(3));
        assert_eq!(first, ContainerState::Exited { started: None, exit: exit(3) });
        assert_eq!(first.exit(exit(4)), first);
        assert_eq!(first.pid(), None);
    }

    #[test]
    fn a_start_that_was_heard_of_late_is_not_after_the_end() {
        let late = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
        let running = ContainerState::Running { pid: NonZeroU32::new(7).unwrap(), started: late };
        assert_eq!(
            running.exit(exit(0)),
            ContainerState::Exited { started: Some(SystemTime::UNIX_EPOCH), exit: exit(0) }
        );
    }
}
