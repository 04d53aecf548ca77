//! Counts how resizes ended, and the values that other processes wrote.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cgroup::{ApplyError, Drift};
use sync::Mutex;

use super::journal::ResizeError;
use super::times::ResizeTimes;

/// How a resize ended, with the reason if it was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Applied,
    /// All values were as requested already.
    Unchanged,
    /// The request is impossible on this node; nothing was written.
    Impossible,
    /// The memory in use exceeds the new limit.
    BelowUsage,
    /// The cgroup does not exist any more.
    Gone,
    /// The active limits could not be read, so nothing was written.
    Unreadable,
    /// The journal could not be written, so the resize was not started.
    Journal,
    /// The kernel refused a value; all writes were undone.
    Write,
    /// The kernel holds another value than was written, or cannot be read; the resize was rolled back.
    NotKept,
    /// systemd did not accept the values; all writes were undone.
    NotTold,
    /// A process could not get its OOM score; all writes were undone.
    OomScore,
    /// The record could not be written; all writes were undone.
    Record,
    /// A step failed, and a write could not be undone.
    Left,
    /// An earlier daemon was killed during the resize; its values were active, or the recovery applied them.
    FinishedAtRecovery,
    /// An earlier daemon was killed during the resize, and the recovery rolled it back.
    UndoneAtRecovery,
    /// The daemon restored values that a reload of systemd changed.
    Restored,
}

impl Outcome {
    pub(crate) const ALL: [Outcome; 16] = [
        Self::Applied,
        Self::Unchanged,
        Self::Impossible,
        Self::BelowUsage,
        Self::Gone,
        Self::Unreadable,
        Self::Journal,
        Self::Write,
        Self::NotKept,
        Self::NotTold,
        Self::OomScore,
        Self::Record,
        Self::Left,
        Self::FinishedAtRecovery,
        Self::UndoneAtRecovery,
        Self::Restored,
    ];

    /// The outcome of a resize, with the reason if it was not applied.
    pub(crate) fn words(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Applied => ("applied", None),
            Self::Unchanged => ("unchanged", None),
            Self::Impossible => ("refused", Some("impossible")),
            Self::BelowUsage => ("refused", Some("below_usage")),
            Self::Gone => ("refused", Some("gone")),
            Self::Unreadable => ("refused", Some("unreadable")),
            Self::Journal => ("refused", Some("journal")),
            Self::Write => ("rolled_back", Some("write")),
            Self::NotKept => ("rolled_back", Some("not_kept")),
            Self::NotTold => ("rolled_back", Some("systemd")),
            Self::OomScore => ("rolled_back", Some("oom_score")),
            Self::Record => ("rolled_back", Some("record")),
            Self::Left => ("rollback_failed", None),
            Self::FinishedAtRecovery => ("applied", Some("recovery")),
            Self::UndoneAtRecovery => ("rolled_back", Some("recovery")),
            Self::Restored => ("applied", Some("systemd_reload")),
        }
    }

    pub(super) fn of(error: &ResizeError) -> Self {
        match error {
            _ if error.is_left() => Self::Left,
            ResizeError::Apply(error) => match error {
                ApplyError::BelowUsage { .. } => Self::BelowUsage,
                ApplyError::Write { .. } => Self::Write,
                ApplyError::NotKept { .. } | ApplyError::NotReadBack { .. } => Self::NotKept,
                ApplyError::NotTold { .. } => Self::NotTold,
                ApplyError::Refused(_) => Self::Impossible,
                ApplyError::Gone(_) => Self::Gone,
                ApplyError::Read { .. } | ApplyError::Unreadable(_) => Self::Unreadable,
            },
            ResizeError::OomScore(_) => Self::OomScore,
            ResizeError::Record(_) | ResizeError::Fault(_) => Self::Record,
            ResizeError::Journal { .. } => Self::Journal,
            ResizeError::Left { .. } => Self::Left,
        }
    }
}

/// Counts since the daemon's start.
#[derive(Debug, Default)]
pub(crate) struct ResizeOutcomes {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    times: ResizeTimes,
    drifted: AtomicU64,
    /// Known differences by the id of the pod or container: each is reported once.
    drifting: Mutex<HashMap<String, Vec<Drift>>>,
}

impl ResizeOutcomes {
    pub(crate) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn times(&self) -> &ResizeTimes {
        &self.times
    }

    pub(crate) fn counted(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of files found with a value that crisp did not write.
    pub(crate) fn drifted(&self) -> u64 {
        self.drifted.load(Ordering::Relaxed)
    }

    /// Returns the number of pods and containers that had such files when they were last read.
    pub(crate) fn drifting(&self) -> usize {
        self.drifting.lock().len()
    }

    /// Returns the ids of these pods and containers with the number of such files.
    pub(crate) fn drifting_files(&self) -> Vec<(String, usize)> {
        self.drifting.lock().iter().map(|(id, drift)| (id.clone(), drift.len())).collect()
    }

    /// Records the drift of `id`: each new one is counted and logged once, and returned.
    pub(crate) fn found(&self, id: &str, drift: &[Drift]) -> Vec<Drift> {
        let mut drifting = self.drifting.lock();
        let known = drifting.get(id);
        let is_new = |drift: &&Drift| !known.is_some_and(|known| known.contains(drift));
        let new: Vec<Drift> = drift.iter().filter(is_new).cloned().collect();
        for Drift { knob, wrote, read: _, found } in &new {
            self.drifted.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(id, file = %knob, wrote, found, "cgroup limit changed outside crisp; the new value stays until the next resize");
        }
        match drift {
            [] => drop(drifting.remove(id)),
            _ if known.is_some_and(|known| known == drift) => {}
            _ => drop(drifting.insert(id.to_owned(), drift.to_vec())),
        }
        new
    }

    pub(crate) fn forget(&self, id: &str) {
        self.drifting.lock().remove(id);
    }
}

#[cfg(test)]
mod tests {
    use cgroup::Knob;

    use super::*;

    fn drift(found: &str) -> Drift {
        Drift { knob: Knob::CPU_MAX, wrote: "1".to_owned(), read: "1".to_owned(), found: Some(found.to_owned()) }
    }

    #[test]
    fn drift_is_counted_once_until_it_ends() {
        let resizes = ResizeOutcomes::default();
        resizes.found("a", &[]);
        assert_eq!((resizes.drifted(), resizes.drifting()), (0, 0));
        resizes.found("a", &[drift("2")]);
        resizes.found("a", &[drift("2")]);
        assert_eq!((resizes.drifted(), resizes.drifting()), (1, 1));
        resizes.found("a", &[drift("3")]);
        resizes.found("b", &[drift("2")]);
        assert_eq!((resizes.drifted(), resizes.drifting()), (3, 2));
        resizes.found("a", &[]);
        resizes.forget("b");
        assert_eq!((resizes.drifted(), resizes.drifting()), (3, 0));
    }

    #[test]
    fn every_outcome_has_a_counter_of_its_own() {
        let resizes = ResizeOutcomes::default();
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
            resizes.count(outcome);
        }
        assert!(Outcome::ALL.into_iter().all(|outcome| resizes.counted(outcome) == 1));
    }
}
