//! Metadata of an entry: owner, mode, extended attributes and times.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::layer::free_space::free_bytes;
use crate::layer::untar::{UntarError, at, refused};
use crate::tar::reader::{Entry, Mtime};

/// The maximum length of the list of extended attributes, and of one attribute.
const XATTR_MAX: usize = 64 * 1024;

/// Sets all metadata of an open file or directory.
///
/// The owner comes first: changing it clears set-id bits and capabilities.
pub(crate) fn apply_metadata(fd: BorrowedFd<'_>, entry: &Entry, path: &Path) -> Result<(), UntarError> {
    rustix::fs::fchown(fd, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))
        .map_err(|errno| at("setting the owner of", path)(errno.into()))?;
    for (name, value) in &entry.xattrs {
        match keeps_xattr(name) {
            Some(true) => match rustix::fs::fsetxattr(fd, OsStr::from_bytes(name), value, XattrFlags::empty()) {
                // The name is too long, or the value is not valid for this attribute.
                Err(Errno::INVAL | Errno::RANGE) => {
                    return Err(refused(path, "extended attribute rejected by the kernel"));
                }
                // Most file systems keep attributes in the inode and one more block.
                Err(Errno::NOSPC) if has_room(fd) => {
                    return Err(refused(path, "extended attributes larger than the file system supports"));
                }
                other => other.map_err(|errno| at("setting an extended attribute of", path)(errno.into()))?,
            },
            Some(false) => {}
            None => return Err(refused(path, "extended attribute not allowed in an image")),
        }
    }
    rustix::fs::fchmod(fd, Mode::from_raw_mode(entry.mode))
        .map_err(|errno| at("setting the mode of", path)(errno.into()))?;
    rustix::fs::futimens(fd, &times(entry.mtime)).map_err(|errno| at("setting the time of", path)(errno.into()))
}

/// Returns whether the file system has free space, so that ENOSPC has another reason.
fn has_room(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatvfs(fd).is_ok_and(|stat| free_bytes(&stat) > u64::try_from(XATTR_MAX).unwrap_or(u64::MAX) * 2)
}

/// Copies the metadata of one file or directory to another.
pub(crate) struct MetadataCopier {
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Default for MetadataCopier {
    fn default() -> Self {
        Self { names: vec![0; XATTR_MAX], value: vec![0; XATTR_MAX] }
    }
}

impl MetadataCopier {
    /// Sets owner, extended attributes, mode and times of `to` to those of `from`; `stat` is that
    /// of `from`.
    pub(crate) fn dress(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, stat: &Stat) -> io::Result<()> {
        let (owner, group) = owners(stat);
        // The owner comes first: changing it clears set-id bits and capabilities.
        rustix::fs::fchown(to, owner, group)?;
        let length = match rustix::fs::flistxattr(from, &mut self.names[..]) {
            Err(Errno::NOTSUP) => 0,
            other => other?,
        };
        for name in self.names[..length].split(|&b| b == 0).filter(|name| keeps_xattr(name) == Some(true)) {
            let length = rustix::fs::fgetxattr(from, name, &mut self.value[..])?;
            rustix::fs::fsetxattr(to, name, &self.value[..length], XattrFlags::empty())?;
        }
        rustix::fs::fchmod(to, Mode::from_raw_mode(stat.st_mode))?;
        Ok(rustix::fs::futimens(to, &times_of(stat))?)
    }
}

pub(crate) fn owners(stat: &Stat) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

/// Returns the access and modification times.
pub(crate) fn times_of(stat: &Stat) -> Timestamps {
    let read = Timespec { tv_sec: stat.st_atime, tv_nsec: i64::try_from(stat.st_atime_nsec).unwrap_or(0) };
    Timestamps { last_access: read, last_modification: modified(stat) }
}

/// Returns `Some(true)` to set the attribute, `None` to refuse it, and `Some(false)` to ignore it:
/// the host's security policy decides it, or Linux does not know it (other systems put such
/// attributes into archives).
pub(crate) fn keeps_xattr(name: &[u8]) -> Option<bool> {
    let starts = |prefix: &str| name.starts_with(prefix.as_bytes());
    if name.contains(&0) {
        None
    } else if starts("user.") || name == b"security.capability" || starts("system.posix_acl_") {
        Some(true)
    } else if starts("security.") || !(starts("trusted.") || starts("system.")) {
        Some(false)
    } else {
        None
    }
}

pub(crate) fn times(mtime: Mtime) -> Timestamps {
    let time = Timespec { tv_sec: mtime.seconds, tv_nsec: i64::from(mtime.nanos) };
    Timestamps { last_access: time, last_modification: time }
}

pub(crate) fn modified(stat: &Stat) -> Timespec {
    Timespec { tv_sec: stat.st_mtime, tv_nsec: i64::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}

pub(crate) fn restore_time(fd: BorrowedFd<'_>, modified: Timespec) -> io::Result<()> {
    let keep = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = Timestamps { last_access: keep, last_modification: modified };
    Ok(rustix::fs::futimens(fd, &times)?)
}
