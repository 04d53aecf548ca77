//! Gives a launch few mounts, however many pods run.
//!
//! libcontainer reads the list of mounts about fifteen times per container, and the container's
//! mount namespace begins as a copy of it. Each pod of a node adds to that list, so without this a
//! launch takes longer with each of them.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, openat, statx};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{chdir, fchdir, pivot_root};
use sys::mount::{Reach, detach_copy};

use crate::rootfs::mounts::attach;

/// Where programs expect cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Leaves all mounts except those on the path to `needed`, which has no links. Requires an own
/// mount namespace whose mounts are private. `unified` is the mount of a cgroup v2 hierarchy, which
/// is then the only cgroup mount. `spare` is an empty directory. On failure all mounts are as
/// before.
pub(crate) fn pivot_to_minimal_mounts(needed: &[PathBuf], unified: Option<&Path>, spare: &Path) -> io::Result<()> {
    let root = detach_copy(Path::new("/"), Reach::Top)?;
    attach(&root, open(CWD, spare)?)?;
    let entered = populate(&root, needed, unified).and_then(|()| Ok(fchdir(&root)?));
    // The old root ends up below the new one, and is detached with all mounts in it.
    if let Err(error) = entered.and_then(|()| Ok(pivot_root(".", ".")?)) {
        chdir("/")?;
        unmount(spare, UnmountFlags::DETACH)?;
        return Err(error);
    }
    unmount(".", UnmountFlags::DETACH)?;
    Ok(chdir("/")?)
}

fn populate(root: &OwnedFd, needed: &[PathBuf], unified: Option<&Path>) -> io::Result<()> {
    let mut kept = BTreeSet::new();
    for path in needed {
        ancestor_mounts(path, &mut kept)?;
    }
    let cgroups = if unified.is_some() { Reach::Top } else { Reach::Tree };
    for (place, reach) in [("/proc", Reach::Top), ("/dev", Reach::Top), ("/sys", cgroups)] {
        kept.retain(|path| reach == Reach::Top || !path.starts_with(place));
        kept.remove(Path::new(place));
        keep(root, Path::new(place), reach)?;
    }
    if let Some(unified) = unified {
        kept.retain(|path| !path.starts_with(CGROUPS));
        put(root, detach_copy(unified, Reach::Top)?, Path::new(CGROUPS))?;
    }
    // In the order of their paths, so that each is mounted after the one that contains it.
    kept.iter().try_for_each(|path| keep(root, path, Reach::Top))
}

fn keep(root: &OwnedFd, path: &Path, reach: Reach) -> io::Result<()> {
    put(root, detach_copy(path, reach)?, path)
}

fn put(root: &OwnedFd, tree: OwnedFd, path: &Path) -> io::Result<()> {
    attach(tree, open(root, path.strip_prefix("/").unwrap_or(path))?)
}

fn open(dir: impl std::os::fd::AsFd, path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(dir, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns every mount point at or above `path`, except the root.
fn ancestor_mounts(path: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for place in path.ancestors().filter(|place| place.parent().is_some()) {
        let about = statx(CWD, place, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty())?;
        if about.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            found.insert(place.to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_on_the_path_to_a_file_are_found() {
        let mut found = BTreeSet::new();
        ancestor_mounts(Path::new("/proc/self/status"), &mut found).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [PathBuf::from("/proc")]);
        assert!(ancestor_mounts(Path::new("/proc/no such file"), &mut BTreeSet::new()).is_err());
    }
}
