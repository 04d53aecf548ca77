//! The parent cgroup of pods: crisp creates it with the first pod and removes it with the last.

use std::sync::MutexGuard;

use cgroup::{Cgroup, CreatedCgroup, CreatedParents, Driver};
use model::error_chain::chain;

use crate::runtime::Runtime;
use crate::store::Layout;

/// Directories that an earlier daemon created. Without its record they stay.
pub(crate) fn read(layout: &Layout) -> CreatedParents {
    safe_fs::read_json(&layout.parent_cgroups())
        .unwrap_or_else(|error| {
            tracing::warn!(
                error = chain(&error),
                "cannot read which parent cgroups of pods crisp created; they stay when empty"
            );
            None
        })
        .unwrap_or_default()
}

impl Runtime {
    /// Records the created parents of a pod's cgroup. systemd manages its own slices.
    pub(crate) fn record_parent_cgroups(&self, made: &CreatedCgroup, pod: &Cgroup) {
        let mut above = self.created_parents();
        if matches!(self.driver, Driver::Cgroupfs) && above.record(made, pod) {
            self.write_parent_cgroups(&above);
        }
    }

    /// Removes the parents that crisp created above the cgroups of pods, if they are empty.
    pub(crate) fn remove_parent_cgroups(&self) {
        let mut above = self.created_parents();
        if above.remove_empty() {
            self.write_parent_cgroups(&above);
        }
    }

    fn created_parents(&self) -> MutexGuard<'_, CreatedParents> {
        self.above.lock()
    }

    fn write_parent_cgroups(&self, above: &CreatedParents) {
        if let Err(error) = safe_fs::write_json(&self.layout.parent_cgroups(), above) {
            tracing::warn!(
                error = chain(&error),
                "cannot record which parent cgroups of pods crisp created; they may stay after a restart of the daemon"
            );
        }
    }
}
