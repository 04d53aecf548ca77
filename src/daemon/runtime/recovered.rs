//! Logs the state that a new daemon recovered, in one line with counts.

use std::collections::BTreeSet;
use std::time::Instant;

use cgroup::{AppliedValues, Change};
use serde_json::Value;

use super::Runtime;
use super::counts::Counts;
use super::resize::journal::Journal;
use super::resize::transaction::Resizable;

/// Counts of the work of a start, beside reading the records.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) began: Instant,
    /// Incomplete pods and containers that are removed.
    pub(super) cleanups: usize,
    /// Writable layers without a container that were removed.
    pub(super) writable_layers: usize,
    resizes_finished: usize,
    resizes_undone: usize,
    /// Neither finished nor undone; the next start tries again.
    resizes_left: usize,
}

impl Default for Recovered {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            cleanups: 0,
            writable_layers: 0,
            resizes_finished: 0,
            resizes_undone: 0,
            resizes_left: 0,
        }
    }
}

impl Runtime {
    /// Finishes or undoes an interrupted resize, and counts it.
    pub(super) fn finish_interrupted_resize<R: Resizable>(&self, record: R, done: &mut Recovered) -> R {
        let dir = record.dir(&self.layout);
        let Some(journal) = Journal::<Value>::read(&dir) else { return self.recover_resize(record) };
        let record = self.recover_resize(record);
        if Journal::<Value>::read(&dir).is_some() {
            done.resizes_left += 1;
        } else if has(record.applied(), &journal.change) {
            done.resizes_finished += 1;
        } else {
            done.resizes_undone += 1;
        }
        record
    }

    pub(super) fn log_recovered(&self, done: &Recovered) {
        let &Recovered { began, cleanups, writable_layers, resizes_finished, resizes_undone, resizes_left } = done;
        let Counts { ready, not_ready, created, running, exited, .. } = self.counts();
        let unreadable_pods: BTreeSet<_> =
            self.pods().iter().filter(|pod| pod.unreadable.is_some()).map(|pod| pod.id.clone()).collect();
        let unreadable_containers = self
            .containers()
            .iter()
            .filter(|one| one.unreadable.is_some() && !unreadable_pods.contains(&one.pod))
            .count();
        tracing::info!(
            pods_ready = ready,
            pods_not_ready = not_ready,
            containers_running = running,
            containers_created = created,
            containers_exited = exited,
            unreadable_pods = unreadable_pods.len(),
            unreadable_containers,
            resizes_finished,
            resizes_undone,
            resizes_left,
            cleanups_resumed = cleanups,
            writable_layers_removed = writable_layers,
            images = self.images.list().len(),
            duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            "recovered the state of an earlier daemon"
        );
    }
}

/// Whether a record has all values that a change wanted.
fn has(applied: &AppliedValues, change: &Change) -> bool {
    change.wanted.iter().all(|(knob, wanted)| applied.get(knob).is_some_and(|is| is.written == wanted.written))
}
