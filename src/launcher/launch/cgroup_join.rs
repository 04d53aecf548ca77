//! Opens the cgroups of a container before its launcher leaves the host's mount namespace.
//!
//! libcontainer adds the container's first process to cgroups itself. On v2 that is one write. On
//! v1 it reads the list of mounts repeatedly, omits named hierarchies, and takes longer than the
//! rest of a launch. So if the host has a v2 hierarchy, libcontainer gets only that, and the
//! launcher joins the others here.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use oci_spec::runtime::Spec;
use rustix::fs::fstatfs;
use shim_protocol::CgroupPaths;

/// The magic number of the cgroup v2 file system: `CGROUP2_SUPER_MAGIC`.
const CGROUP2: rustix::fs::FsWord = 0x6367_7270;

/// Every `cgroup.procs` of the container's cgroups, and its path.
#[derive(Debug)]
pub(crate) struct CgroupFds(Vec<(PathBuf, File)>);

impl CgroupFds {
    pub(crate) fn open(cgroup: &CgroupPaths) -> io::Result<Self> {
        let open = |path: &PathBuf| Ok((path.clone(), File::options().write(true).open(path)?));
        Ok(Self(cgroup.join.iter().map(open).collect::<io::Result<_>>()?))
    }

    /// Returns the mount point of the v2 hierarchy that has the container's cgroup.
    pub(crate) fn unified(&self, spec: &Spec) -> Option<PathBuf> {
        let is_v2 = |file: &File| fstatfs(file).is_ok_and(|about| about.f_type == CGROUP2);
        let (path, _) = self.0.iter().find(|(_, file)| is_v2(file))?;
        parent_of(path.parent()?, spec.linux().as_ref()?.cgroups_path().as_deref()?)
    }

    pub(crate) fn add(&self, pid: u32) -> io::Result<()> {
        self.0.iter().try_for_each(|(_, file)| (&*file).write_all(pid.to_string().as_bytes()))
    }
}

/// Returns the directory that contains `path` as `dir`.
fn parent_of(dir: &Path, path: &Path) -> Option<PathBuf> {
    let path = path.strip_prefix("/").ok().filter(|path| dir.ends_with(path))?;
    dir.ancestors().nth(path.components().count()).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_mounted_above_the_path_of_the_cgroup() {
        let tree = |dir: &str, path: &str| parent_of(Path::new(dir), Path::new(path));
        assert_eq!(tree("/sys/fs/cgroup/unified/pods/a/b", "/pods/a/b"), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(tree("/sys/fs/cgroup/a", "/a"), Some("/sys/fs/cgroup".into()));
        assert_eq!(tree("/sys/fs/cgroup/a", "/b"), None);
        assert_eq!(tree("/sys/fs/cgroup/a", "a"), None, "systemd's way to name a cgroup");
    }
}
