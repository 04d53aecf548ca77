//! Keeps content that later entries of the same layer replace: the layer does not show it, but its
//! tar-split refers to it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::layer::confined_root::stat;

/// The directory of replaced files, beside the layer's own; each is named by its inode number.
///
/// The number cannot be reused while the file exists, so it identifies one file of the layer.
pub(crate) struct ReplacedFiles {
    path: PathBuf,
    fd: Option<OwnedFd>,
}

/// The name of the directory, beside the layer's files; it exists only if files were replaced.
pub(crate) const REPLACED: &str = "replaced";

impl ReplacedFiles {
    pub(crate) fn new(layer: &Path) -> Self {
        Self { path: layer.join(REPLACED), fd: None }
    }

    /// Links all files with content at or below `name` into this directory.
    pub(crate) fn keep(&mut self, holder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        let Some(stat) = stat(holder, name)? else { return Ok(()) };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if stat.st_size > 0 => {
                let number = stat.st_ino.to_string();
                match rustix::fs::linkat(holder, name, self.open()?, number, AtFlags::empty()) {
                    // Another name of the same file was replaced before.
                    Ok(()) | Err(Errno::EXIST) => Ok(()),
                    Err(errno) => Err(errno.into()),
                }
            }
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let inside = rustix::fs::openat(holder, name, flags, Mode::empty())?;
                for child in rustix::fs::Dir::read_from(&inside)? {
                    let child = child?;
                    let name = OsStr::from_bytes(child.file_name().to_bytes());
                    if name != "." && name != ".." {
                        self.keep(inside.as_fd(), name)?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self) -> io::Result<&OwnedFd> {
        let fd = match self.fd.take() {
            Some(fd) => fd,
            None => {
                rustix::fs::mkdirat(CWD, &self.path, Mode::RWXU)?;
                rustix::fs::open(&self.path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?
            }
        };
        Ok(self.fd.insert(fd))
    }
}
