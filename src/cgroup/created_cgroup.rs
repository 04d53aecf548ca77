//! Directories and units that the creation of a cgroup created, for removal after a failure.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::cgroup::{CgroupError, REMOVE_WITHIN, request_error};
use crate::cgroupfs::remove_dir;
use crate::systemd::{Systemd, Unit};

/// The systemd unit and directories that [`Cgroup::create`](crate::Cgroup::create) created, parents first.
#[derive(Debug, Default)]
#[must_use = "only this knows what to take back"]
pub struct CreatedCgroup {
    pub(crate) unit: Option<(Arc<Systemd>, Unit)>,
    pub(crate) dirs: Vec<PathBuf>,
}

impl CreatedCgroup {
    /// Whether everything existed before.
    pub fn is_empty(&self) -> bool {
        self.unit.is_none() && self.dirs.is_empty()
    }

    /// Removes only what was created; continues after a failure and returns the first.
    pub fn undo(self) -> Result<(), CgroupError> {
        let mut outcome = Ok(());
        if let Some((systemd, unit)) = &self.unit {
            outcome = systemd.stop(unit).map_err(|source| request_error(unit, source));
        }
        let deadline = Instant::now() + REMOVE_WITHIN;
        for dir in self.dirs.iter().rev() {
            outcome = outcome.and(remove_dir(dir, deadline));
        }
        outcome
    }
}
