//! Whiteouts: how a layer says that something of the layers below is gone.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, Stat, XattrFlags};

use crate::layer::confined_root::stat;
use crate::layer::layer_dir::{EntryPath, LayerDir};
use crate::layer::untar::{UntarError, at, refused};

/// The mark by which overlayfs knows an opaque directory.
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";

impl LayerDir<'_> {
    /// `.wh.name` hides `name` of the layers below, `.wh..wh..opq` all of a directory; never what this layer has.
    pub(crate) fn whiteout(&mut self, entry_path: &EntryPath<'_>, hidden: &[u8]) -> Result<(), UntarError> {
        let EntryPath { path, parent, .. } = *entry_path;
        if hidden == b".wh..opq" {
            let fd = self.enter(parent)?;
            return mark_opaque(fd, path);
        }
        if hidden.starts_with(b".wh.") {
            // Bookkeeping of aufs that old builders left in their layers; it names no file.
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(refused(path, "whiteout of no file"));
        }
        let name = OsStr::from_bytes(hidden);
        let fd = self.enter(parent)?;
        match stat(fd, name).map_err(at("looking at", path))? {
            None => Ok(make_whiteout(fd, name).map_err(|errno| at("making the whiteout", path)(errno.into()))?),
            Some(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
                let made = self.child(&EntryPath { path, parent, name })?;
                mark_opaque(made.as_fd(), path)
            }
            // A file of this layer already hides the one below.
            Some(_) => Ok(()),
        }
    }
}

/// Whether overlayfs takes it for a whiteout.
pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_char_device() && stat.st_rdev == 0
}

/// Whether a name in a tar stream is a whiteout's.
pub(crate) fn is_reserved(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".wh.")
}

pub(crate) fn make_whiteout(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    rustix::fs::mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0)
}

pub(crate) fn mark_opaque(fd: BorrowedFd<'_>, path: &Path) -> Result<(), UntarError> {
    rustix::fs::fsetxattr(fd, OPAQUE, b"y", XattrFlags::empty())
        .map_err(|errno| at("marking as opaque the directory of", path)(errno.into()))
}

/// Whether a directory hides those of its name in the layers below.
pub(crate) fn is_opaque(fd: BorrowedFd<'_>) -> std::io::Result<bool> {
    let mut value = [0u8; 2];
    match rustix::fs::fgetxattr(fd, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP | rustix::io::Errno::RANGE) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
