//! Counts of container exits and of OOM kills in containers, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use model::{ContainerState, Exit};

use super::Runtime;
use crate::store::{ContainerRecord, Entry};

/// The reasons of exits, in the words of CRI.
const REASONS: [&str; 5] = ["Completed", "Error", "OOMKilled", "ShimLost", "StartError"];

/// Counts since the daemon's start.
#[derive(Debug, Default)]
pub(crate) struct ExitCounts {
    exits: [AtomicU64; REASONS.len()],
    oom_kills: AtomicU64,
}

impl ExitCounts {
    fn note(&self, exit: &Exit) {
        let reason = exit.reason();
        if let Some(index) = REASONS.iter().position(|word| *word == reason) {
            self.exits[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of exits for each reason.
    pub(crate) fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.into_iter().zip(self.exits.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    pub(crate) fn oom_kills(&self) -> u64 {
        self.oom_kills.load(Ordering::Relaxed)
    }
}

impl Runtime {
    /// Returns the counts of exits and OOM kills, also those in containers that still run.
    pub(crate) fn exit_counts(&self) -> &ExitCounts {
        for entry in self.containers.all() {
            if matches!(entry.get().state, ContainerState::Running { .. }) {
                self.count_oom_kills(&entry, false);
            }
        }
        &self.exits
    }

    /// Counts the exit of a container that has just ended, while its cgroup exists.
    pub(super) fn count_exit(&self, entry: &Entry<ContainerRecord>) {
        if let ContainerState::Exited { exit, .. } = &entry.get().state {
            self.exits.note(exit);
            self.count_oom_kills(entry, exit.oom);
        }
    }

    fn count_oom_kills(&self, entry: &Entry<ContainerRecord>, is_killed: bool) {
        let read = self.cgroup_of(entry).oom_kills();
        let new = entry.samples().oom_kills.advance(read, is_killed);
        self.exits.oom_kills.fetch_add(new, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use model::AbnormalExit;

    use super::*;

    #[test]
    fn every_exit_is_counted_by_its_reason() {
        let exits = ExitCounts::default();
        let exit = |code, oom, abnormal| Exit { code, at: SystemTime::UNIX_EPOCH, oom, abnormal };
        for (one, reason) in [
            (exit(0, false, None), "Completed"),
            (exit(7, false, None), "Error"),
            (exit(137, true, None), "OOMKilled"),
            (exit(128, false, Some(AbnormalExit::Start(String::new()))), "StartError"),
            (exit(255, false, Some(AbnormalExit::Lost(String::new()))), "ShimLost"),
        ] {
            exits.note(&one);
            assert!(exits.by_reason().any(|counted| counted == (reason, 1)), "{reason}");
        }
    }
}
