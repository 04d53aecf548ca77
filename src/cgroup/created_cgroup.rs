//! What the making of a cgroup made, to be taken back.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::cgroup::{CgroupError, REMOVE_WITHIN, asking};
use crate::cgroupfs::remove_dir;
use crate::systemd::{Systemd, Unit};

/// What a [`Cgroup::create`](crate::Cgroup::create) had to make: a unit of systemd's, and directories, parents first.
#[derive(Debug, Default)]
#[must_use = "only this knows what to take back"]
pub struct CreatedCgroup {
    pub(crate) unit: Option<(Arc<Systemd>, Unit)>,
    pub(crate) dirs: Vec<PathBuf>,
}

impl CreatedCgroup {
    /// Whether everything had been there before.
    pub fn is_empty(&self) -> bool {
        self.unit.is_none() && self.dirs.is_empty()
    }

    /// Removes what was made, and only that; goes on after a failure and tells the first.
    pub fn undo(self) -> Result<(), CgroupError> {
        let mut outcome = Ok(());
        if let Some((systemd, unit)) = &self.unit {
            outcome = systemd.stop(unit).map_err(|source| asking(unit, source));
        }
        let deadline = Instant::now() + REMOVE_WITHIN;
        for dir in self.dirs.iter().rev() {
            outcome = outcome.and(remove_dir(dir, deadline));
        }
        outcome
    }
}
