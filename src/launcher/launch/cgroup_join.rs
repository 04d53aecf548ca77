//! Opens the cgroups of a container before its launcher leaves the host's mount namespace.
//!
//! libcontainer adds the container's first process to cgroups itself. On v2 that is one write. On
//! v1 it reads the list of mounts repeatedly, omits named hierarchies, and takes longer than the
//! rest of a launch. So if the host has a v2 hierarchy, libcontainer gets only that, and the
//! launcher joins the others here.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};

use oci_spec::runtime::Spec;
use rustix::fs::fstatfs;
use rustix::io::Errno;
use rustix::process::Pid;
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

    pub(crate) fn files(&self) -> impl Iterator<Item = &File> {
        self.0.iter().map(|(_, file)| file)
    }

    /// Moves the calling process into the container's cgroups; `init` is the container's first process.
    ///
    /// A cgroup of version 2 that passes controllers on to its children takes no process (EBUSY). A container that may
    /// write its cgroups, such as one with systemd or Docker in it, is then joined where `init` is, as runc does.
    pub(crate) fn join(&self, init: Pid) -> io::Result<()> {
        for (path, file) in &self.0 {
            match (&*file).write_all(b"0") {
                Err(busy) if Errno::from_io_error(&busy) == Some(Errno::BUSY) => {
                    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", init.as_raw_nonzero()))?;
                    let nested = nested_procs(path, &text).ok_or(busy)?;
                    File::options().write(true).open(nested)?.write_all(b"0")?;
                }
                done => done?,
            }
        }
        Ok(())
    }

    pub(crate) fn add(&self, pid: u32) -> io::Result<()> {
        self.0.iter().try_for_each(|(_, file)| (&*file).write_all(pid.to_string().as_bytes()))
    }
}

/// Returns the `cgroup.procs` of the cgroup of version 2 that `text`, a `/proc/PID/cgroup`, names, if that is below the
/// cgroup of `procs`.
fn nested_procs(procs: &Path, text: &str) -> Option<PathBuf> {
    let dir = procs.parent()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let below = path.split('/').skip_while(|name| Some(OsStr::new(name)) != dir.file_name()).skip(1);
    let below: PathBuf = below.collect();
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && below.components().next().is_some()).then(|| dir.join(below).join("cgroup.procs"))
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
    fn a_process_joins_a_nested_cgroup_only_below_that_of_its_container() {
        let nested = |text: &str| nested_procs(Path::new("/sys/fs/cgroup/pods/a/id/cgroup.procs"), text);
        let found = |path: &str| Some(PathBuf::from(path));
        assert_eq!(nested("0::/pods/a/id/b/c\n"), found("/sys/fs/cgroup/pods/a/id/b/c/cgroup.procs"));
        assert_eq!(nested("1:cpu:/x\n0::/pods/a/id/id\n"), found("/sys/fs/cgroup/pods/a/id/id/cgroup.procs"));
        for elsewhere in ["0::/pods/a/id", "0::/pods/a/id/", "0::/pods/b/other", "0::/", "1:cpu:/pods/a/id/b", ""] {
            assert_eq!(nested(elsewhere), None, "{elsewhere}");
        }
        assert_eq!(nested("0::/pods/a/id/../../b"), None);
    }

    #[test]
    fn a_tree_is_mounted_above_the_path_of_the_cgroup() {
        let tree = |dir: &str, path: &str| parent_of(Path::new(dir), Path::new(path));
        assert_eq!(tree("/sys/fs/cgroup/unified/pods/a/b", "/pods/a/b"), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(tree("/sys/fs/cgroup/a", "/a"), Some("/sys/fs/cgroup".into()));
        assert_eq!(tree("/sys/fs/cgroup/a", "/b"), None);
        assert_eq!(tree("/sys/fs/cgroup/a", "a"), None, "systemd's way to name a cgroup");
    }
}
