//! The processes in a cgroup and in those below it: lists, freezes, thaws and kills them.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use cgroup_procs::{CgroupDirs, Freezer, FreezerState, ProcsError};

use crate::cgroup::{Cgroup, CgroupError};
use crate::layout::Version;

impl Cgroup {
    /// Returns every process in this cgroup and below it, in any hierarchy: also one that has joined only some of them.
    /// A cgroup that does not exist has none.
    pub fn procs(&self) -> Result<BTreeSet<NonZeroU32>, CgroupError> {
        self.with_dirs(CgroupDirs::procs)
    }

    /// Returns whether no process is in this cgroup or below it, or it does not exist.
    pub fn is_empty(&self) -> Result<bool, CgroupError> {
        self.with_dirs(CgroupDirs::is_empty)
    }

    /// Kills every process in this cgroup and below it, also those that fork faster than they are listed.
    ///
    /// Leaves the cgroup thawed. Fails if processes are left after `within`.
    pub fn kill_all(&self, within: Duration) -> Result<(), CgroupError> {
        self.with_dirs(|dirs| dirs.kill_all(within))
    }

    /// Freezes every process in this cgroup and below it, and waits until they are frozen.
    pub fn freeze(&self, within: Duration) -> Result<(), CgroupError> {
        self.with_dirs(|dirs| dirs.freeze(within))
    }

    /// Thaws this cgroup; those below that are frozen themselves stay frozen.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        self.with_dirs(CgroupDirs::thaw)
    }

    /// Returns whether every process is frozen.
    pub fn is_frozen(&self) -> Result<bool, CgroupError> {
        Ok(self.with_dirs(CgroupDirs::freezer_state)? == FreezerState::Frozen)
    }

    /// Thaws this cgroup and all below it, if they exist and the host has a freezer.
    pub(crate) fn thaw_all(&self) -> Result<(), CgroupError> {
        self.with_dirs(CgroupDirs::thaw_all)
    }

    /// The directories of this cgroup. Those that exist are the ones that a shim finds.
    pub(crate) fn process_dirs(&self) -> CgroupDirs {
        let freezer = self.dir_of("freezer").map(match self.layout().version() {
            Version::V1 => Freezer::V1,
            Version::V2 => Freezer::V2,
        });
        CgroupDirs { all: self.dirs().collect(), v2: self.unified_dir(), freezer }
    }

    fn with_dirs<T>(&self, act: impl FnOnce(&CgroupDirs) -> Result<T, ProcsError>) -> Result<T, CgroupError> {
        act(&self.process_dirs()).map_err(|e| self.procs_error(e))
    }

    /// Adds the path of this cgroup to an error.
    pub(crate) fn procs_error(&self, error: ProcsError) -> CgroupError {
        let path = self.path().clone();
        match error {
            ProcsError::Read { path, source } => CgroupError::Read { path, source },
            ProcsError::Write { path, value, source } => CgroupError::Write { path, value: value.to_owned(), source },
            ProcsError::Kill { pid, source } => CgroupError::Kill { pid, source },
            ProcsError::Own => CgroupError::Own(path),
            ProcsError::NoFreezer => CgroupError::NoFreezer(path),
            ProcsError::TooSlow { wanted, after } => CgroupError::TooSlow { path, wanted, after },
        }
    }
}
