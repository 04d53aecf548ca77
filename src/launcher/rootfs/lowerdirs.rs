//! Enters the directory of all layers, with their ids or with mapped ones.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{UnmountFlags, unmount};
use sys::mount::{Reach, detach_copy, map_ids};

use crate::rootfs::mounts::attach;

/// The layers directory as working directory, so that mount options, limited to one page, can use
/// short relative names.
#[derive(Debug)]
#[must_use = "the layers are to be left"]
pub struct LowerdirGuard<'a> {
    /// Where it is mounted with mapped ids.
    shown: Option<&'a Path>,
}

/// Enters the directory of all layers. With `ids`, it is mounted at `spare` with these ids: an
/// overlay of layers found there has them too. Requires an own mount namespace.
pub fn enter<'a>(layers: &Path, ids: Option<BorrowedFd<'_>>, spare: &'a Path) -> io::Result<LowerdirGuard<'a>> {
    let Some(ids) = ids else {
        rustix::process::chdir(layers)?;
        return Ok(LowerdirGuard { shown: None });
    };
    let tree = detach_copy(layers, Reach::Top)?;
    map_ids(&tree, ids, Reach::Top)?;
    let onto = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    attach(&tree, rustix::fs::open(spare, onto, Mode::empty())?)?;
    rustix::process::fchdir(&tree)?;
    Ok(LowerdirGuard { shown: Some(spare) })
}

impl LowerdirGuard<'_> {
    /// Returns to the root. No other mount may be left at the spare directory; overlays keep the
    /// layers that they use.
    pub fn leave(self) -> io::Result<()> {
        rustix::process::chdir("/")?;
        match self.shown {
            Some(shown) => Ok(unmount(shown, UnmountFlags::DETACH)?),
            None => Ok(()),
        }
    }
}
