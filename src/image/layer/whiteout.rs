//! Whiteouts: entries of a layer that remove files of the layers below.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, Stat, XattrFlags};

use crate::layer::confined_root::stat;
use crate::layer::layer_dir::{EntryPath, LayerDir};
use crate::layer::untar::{UntarError, at, refused};

/// The extended attribute by which overlayfs recognises an opaque directory.
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";

impl LayerDir<'_> {
    /// Handles `.wh.name`, which hides `name` of the layers below, and `.wh..wh..opq`, which hides
    /// all of a directory; files of this layer stay visible.
    pub(crate) fn whiteout(&mut self, entry_path: &EntryPath<'_>, hidden: &[u8]) -> Result<(), UntarError> {
        let EntryPath { path, parent, .. } = *entry_path;
        if hidden == b".wh..opq" {
            let fd = self.enter(parent)?;
            return mark_opaque(fd, path);
        }
        if hidden.starts_with(b".wh.") {
            // Metadata of aufs that old builders left in their layers; it refers to no file.
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(refused(path, "whiteout without a file name"));
        }
        let name = OsStr::from_bytes(hidden);
        let fd = self.enter(parent)?;
        match stat(fd, name).map_err(at("reading the status of", path))? {
            None => Ok(make_whiteout(fd, name).map_err(|errno| at("creating the whiteout", path)(errno.into()))?),
            Some(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
                let made = self.child(&EntryPath { path, parent, name })?;
                mark_opaque(made.as_fd(), path)
            }
            // A file of this layer already hides the one below.
            Some(_) => Ok(()),
        }
    }
}

/// Returns whether overlayfs treats this file as a whiteout.
pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_char_device() && stat.st_rdev == 0
}

/// Returns whether a name in a tar stream is that of a whiteout.
pub(crate) fn is_reserved(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".wh.")
}

pub(crate) fn make_whiteout(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    rustix::fs::mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0)
}

pub(crate) fn mark_opaque(fd: BorrowedFd<'_>, path: &Path) -> Result<(), UntarError> {
    rustix::fs::fsetxattr(fd, OPAQUE, b"y", XattrFlags::empty())
        .map_err(|errno| at("marking as opaque the directory", path)(errno.into()))
}

/// Returns whether a directory hides directories of the same name in the layers below.
pub(crate) fn is_opaque(fd: BorrowedFd<'_>) -> std::io::Result<bool> {
    let mut value = [0u8; 2];
    match rustix::fs::fgetxattr(fd, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP | rustix::io::Errno::RANGE) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
