//! The number of processes and threads in a cgroup.

use std::fs;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::cgroup::{Cgroup, CgroupError};
use crate::cgroupfs::{children, gone};

impl Cgroup {
    /// The processes in this cgroup and below it as one tree has them: all but those that are just joining.
    ///
    /// Much cheaper than [`procs`](Cgroup::procs), which reads every hierarchy.
    pub fn members(&self) -> Result<Vec<NonZeroU32>, CgroupError> {
        let mut members = Vec::new();
        if let Some(dir) = self.dir_of("memory").or_else(|| self.unified_dir()) {
            collect(&dir, &mut members)?;
        }
        Ok(members)
    }
}

fn collect(dir: &Path, members: &mut Vec<NonZeroU32>) -> Result<(), CgroupError> {
    let path = dir.join("cgroup.procs");
    match fs::read_to_string(&path) {
        Ok(text) => members.extend(text.lines().filter_map(|line| line.parse::<NonZeroU32>().ok())),
        // The processes of a threaded cgroup are listed further up.
        Err(e) if gone(&e) || rustix::io::Errno::from_io_error(&e) == Some(rustix::io::Errno::OPNOTSUPP) => {}
        Err(source) => return Err(CgroupError::Read { path, source }),
    }
    // A directory that nothing lies in has two names, its own and the one in its parent.
    if fs::metadata(dir).is_ok_and(|meta| meta.nlink() <= 2) {
        return Ok(());
    }
    children(dir)?.iter().try_for_each(|child| collect(child, members))
}
