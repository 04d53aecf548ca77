//! A launch sees few mounts, however many pods there are.
//!
//! libcontainer reads the list of mounts some fifteen times for each container, and the container's own namespace begins as
//! a copy of it. On a node every pod adds to that list, so a launch would take longer with each of them.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, openat, statx};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{chdir, fchdir, pivot_root};
use sys::mount::{Reach, detach_copy};

use crate::stage::attach;

/// What a launch needs of the host beside the way to its own files; the last with the cgroups below it.
const ALWAYS: [(&str, Reach); 3] = [("/proc", Reach::Top), ("/dev", Reach::Top), ("/sys", Reach::Tree)];

/// Leaves all mounts behind but those on the way to `needed`, which is without links. Only in a mount namespace of one's own,
/// whose mounts are private. `spare` is an empty directory. Where it fails, all mounts are as they were.
pub(crate) fn shed(needed: &[PathBuf], spare: &Path) -> io::Result<()> {
    let root = detach_copy(Path::new("/"), Reach::Top)?;
    attach(&root, open(CWD, spare)?)?;
    let entered = furnish(&root, needed).and_then(|()| Ok(fchdir(&root)?));
    // The new root over the old one, which then lies on top and goes with all that is mounted in it.
    if let Err(error) = entered.and_then(|()| Ok(pivot_root(".", ".")?)) {
        chdir("/")?;
        unmount(spare, UnmountFlags::DETACH)?;
        return Err(error);
    }
    unmount(".", UnmountFlags::DETACH)?;
    Ok(chdir("/")?)
}

fn furnish(root: &OwnedFd, needed: &[PathBuf]) -> io::Result<()> {
    let mut kept = BTreeSet::new();
    for path in needed {
        mounts_on_the_way(path, &mut kept)?;
    }
    for (place, reach) in ALWAYS {
        kept.retain(|path| reach == Reach::Top || !path.starts_with(place));
        kept.remove(Path::new(place));
        keep(root, Path::new(place), reach)?;
    }
    // In the order of their paths, so that none is mounted before what it lies in.
    kept.iter().try_for_each(|path| keep(root, path, Reach::Top))
}

fn keep(root: &OwnedFd, path: &Path, reach: Reach) -> io::Result<()> {
    let onto = open(root, path.strip_prefix("/").unwrap_or(path))?;
    attach(detach_copy(path, reach)?, onto)
}

fn open(dir: impl std::os::fd::AsFd, path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(dir, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Every place at or above `path`, but the root, where something is mounted.
fn mounts_on_the_way(path: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
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
    fn the_way_to_a_file_has_the_mounts_that_it_leads_through() {
        let mut found = BTreeSet::new();
        mounts_on_the_way(Path::new("/proc/self/status"), &mut found).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [PathBuf::from("/proc")]);
        assert!(mounts_on_the_way(Path::new("/proc/no such file"), &mut BTreeSet::new()).is_err());
    }
}
