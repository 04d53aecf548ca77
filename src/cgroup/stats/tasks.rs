//! The number of processes and threads in a cgroup.

use std::num::NonZeroU32;

use crate::cgroup::{Cgroup, CgroupError};

impl Cgroup {
    /// Returns the processes in this cgroup and its descendants from one tree: all but those that
    /// are just joining. Much cheaper than [`procs`](Cgroup::procs), which reads every hierarchy.
    pub fn members(&self) -> Result<Vec<NonZeroU32>, CgroupError> {
        let mut members = Vec::new();
        if let Some(dir) = self.dir_of("memory").or_else(|| self.unified_dir()) {
            cgroup_procs::collect(&dir, &mut members).map_err(|e| self.procs_error(e))?;
        }
        Ok(members)
    }
}
