//! The way to an image's layers, as they are or under other ids.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{UnmountFlags, unmount};
use sys::mount::{Reach, detach_copy, map_ids};

use crate::rootfs::mounts::attach;

/// The layers are the working directory, so that mount options, which are limited to one page, can name them shortly.
#[derive(Debug)]
#[must_use = "the layers are to be left"]
pub struct LowerdirGuard<'a> {
    /// Where they are mounted under other ids.
    shown: Option<&'a Path>,
}

/// Enters the directory of all layers. With `ids`, by way of a mount at `spare` that shows them under these: an overlay of
/// layers found there shows their files so too. Only in a mount namespace of one's own.
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
    /// Goes back to the root. Nothing else may be mounted at the spare place any more; what was made of the layers keeps
    /// them.
    pub fn leave(self) -> io::Result<()> {
        rustix::process::chdir("/")?;
        match self.shown {
            Some(shown) => Ok(unmount(shown, UnmountFlags::DETACH)?),
            None => Ok(()),
        }
    }
}
