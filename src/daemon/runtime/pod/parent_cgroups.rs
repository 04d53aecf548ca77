//! The cgroup above pods of our own: made with the first of them, gone with the last.

use std::sync::MutexGuard;

use cgroup::{Cgroup, CreatedCgroup, CreatedParents, Driver};
use model::error_chain::chain;

use crate::runtime::Runtime;
use crate::store::Layout;

/// What an earlier daemon made. Without its note, that stays.
pub(crate) fn read(layout: &Layout) -> CreatedParents {
    safe_fs::read_json(&layout.above())
        .unwrap_or_else(|error| {
            tracing::warn!(
                error = chain(&error),
                "which cgroups were made above those of pods is not known: they stay"
            );
            None
        })
        .unwrap_or_default()
}

impl Runtime {
    /// Remembers what was made above a pod's cgroup. systemd looks after its own slices.
    pub(crate) fn note_above(&self, made: &CreatedCgroup, pod: &Cgroup) {
        let mut above = self.above();
        if matches!(self.driver, Driver::Cgroupfs) && above.record(made, pod) {
            self.write_above(&above);
        }
    }

    /// Removes what was made above the cgroups of pods, where there are none.
    pub(crate) fn remove_above(&self) {
        let mut above = self.above();
        if above.remove_empty() {
            self.write_above(&above);
        }
    }

    fn above(&self) -> MutexGuard<'_, CreatedParents> {
        self.above.lock()
    }

    fn write_above(&self, above: &CreatedParents) {
        if let Err(error) = safe_fs::write_json(&self.layout.above(), above) {
            tracing::warn!(error = chain(&error), "the cgroups above those of pods may stay after the next start");
        }
    }
}
