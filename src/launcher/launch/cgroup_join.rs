//! The cgroups of a container, opened before its launcher leaves the host's mounts behind.
//!
//! libcontainer puts the container's first process into cgroups itself. In the tree of version 2 that is one write; among those of
//! version 1 it reads the list of mounts over and over, leaves out named trees, and takes longer than all the rest of a
//! launch. So wherever the host has a tree of version 2, that is all libcontainer is shown, and the others are joined here.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use oci_spec::runtime::Spec;
use rustix::fs::fstatfs;
use shim_protocol::CgroupPaths;

/// What the kernel calls the file system of cgroup v2: `CGROUP2_SUPER_MAGIC`.
const CGROUP2: rustix::fs::FsWord = 0x6367_7270;

/// Every `cgroup.procs` of the container's, and its path.
#[derive(Debug)]
pub(crate) struct CgroupFds(Vec<(PathBuf, File)>);

impl CgroupFds {
    pub(crate) fn open(cgroup: &CgroupPaths) -> io::Result<Self> {
        let open = |path: &PathBuf| Ok((path.clone(), File::options().write(true).open(path)?));
        Ok(Self(cgroup.join.iter().map(open).collect::<io::Result<_>>()?))
    }

    /// Where the tree of version 2 is mounted that the container has its cgroup in.
    pub(crate) fn unified(&self, spec: &Spec) -> Option<PathBuf> {
        let is_v2 = |file: &File| fstatfs(file).is_ok_and(|about| about.f_type == CGROUP2);
        let (path, _) = self.0.iter().find(|(_, file)| is_v2(file))?;
        parent_of(path.parent()?, spec.linux().as_ref()?.cgroups_path().as_deref()?)
    }

    pub(crate) fn add(&self, pid: u32) -> io::Result<()> {
        self.0.iter().try_for_each(|(_, file)| (&*file).write_all(pid.to_string().as_bytes()))
    }
}

/// The directory that has `path` below it as `dir`.
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
