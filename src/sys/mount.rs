//! The parts of the mount API that rustix lacks.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::mount::{OpenTreeFlags, open_tree};

/// The changes that `mount_setattr` makes to a mount, or to a tree of mounts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    pub set: u64,
    pub clear: u64,
    /// One of `MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED`, or 0 for no change.
    pub propagation: u64,
}

pub const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;
pub const NOATIME: u64 = libc::MOUNT_ATTR_NOATIME;
pub const RELATIME: u64 = libc::MOUNT_ATTR_RELATIME;
pub const STRICTATIME: u64 = libc::MOUNT_ATTR_STRICTATIME;
/// Cleared before one of the three above is set.
pub const ATIME: u64 = libc::MOUNT_ATTR__ATIME;
pub const NODIRATIME: u64 = libc::MOUNT_ATTR_NODIRATIME;
pub const PRIVATE: u64 = libc::MS_PRIVATE;
pub const SLAVE: u64 = libc::MS_SLAVE;
pub const SHARED: u64 = libc::MS_SHARED;

/// Whether a change or copy includes the mounts below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only this mount.
    Top,
    /// This mount and all below it.
    Tree,
}

/// Changes the attributes of the mount behind `mount`.
pub fn set_attributes(mount: impl AsFd, attributes: Attributes, reach: Reach) -> io::Result<()> {
    let Attributes { set, clear, propagation } = attributes;
    change(mount, libc::mount_attr { attr_set: set, attr_clr: clear, propagation, userns_fd: 0 }, reach)
}

/// Makes `mount` an id-mapped mount with the mappings of the user namespace `ids`.
///
/// Possible once per mount, while it is detached, and only on file systems that support it.
pub fn map_ids(mount: impl AsFd, ids: impl AsFd, reach: Reach) -> io::Result<()> {
    let userns_fd = u64::try_from(ids.as_fd().as_raw_fd()).map_err(io::Error::other)?;
    let attr = libc::mount_attr { attr_set: libc::MOUNT_ATTR_IDMAP, attr_clr: 0, propagation: 0, userns_fd };
    change(mount, attr, reach)
}

fn change(mount: impl AsFd, attr: libc::mount_attr, reach: Reach) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if reach == Reach::Tree { libc::AT_RECURSIVE } else { 0 };
    let empty: &CStr = c"";
    // SAFETY: the descriptor is borrowed for the call, the path is a C string, and `attr` is a
    // mount_attr of the given size, which the kernel only reads.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            empty.as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns a detached copy of the mount at `path`. Symbolic links are followed.
pub fn detach_copy(path: &Path, reach: Reach) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if reach == Reach::Tree {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(rustix::fs::CWD, path, flags)?)
}
