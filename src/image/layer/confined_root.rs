//! A directory that confines all operations: the kernel resolves every path inside it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Enough for real images, and small enough to walk and remove recursively.
pub(crate) const DEPTH_MAX: usize = 256;

/// Flags for paths that the kernel must resolve inside the root.
pub(crate) const INSIDE: ResolveFlags =
    ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);

#[derive(Debug)]
pub(crate) struct ConfinedRoot {
    fd: OwnedFd,
    /// The path of the root, as the kernel reports it.
    real: PathBuf,
}

impl ConfinedRoot {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let real = spelled(fd.as_fd())?;
        Ok(Self { fd, real })
    }

    /// Opens the directory at `path`; symbolic links are followed inside the root.
    pub(crate) fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        self.locate(path).map(|(fd, _)| fd)
    }

    /// Does the same as [`ConfinedRoot::directory`], and returns the path without symbolic links.
    pub(crate) fn locate(&self, path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        // Almost no path has a symbolic link, and then its depth is that of its text.
        let plain = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        match rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), plain) {
            Ok(fd) => return Ok((fd, path.components().filter(|part| *part != Component::CurDir).collect())),
            Err(Errno::LOOP | Errno::XDEV) => {}
            Err(errno) => return Err(errno.into()),
        }
        let fd = retry(|| rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), INSIDE))?;
        let real = spelled(fd.as_fd())?;
        let real = real.strip_prefix(&self.real).map_err(|_| Errno::XDEV)?;
        if real.components().count() > DEPTH_MAX { Err(Errno::NAMETOOLONG.into()) } else { Ok((fd, real.to_owned())) }
    }

    /// Opens a regular file for reading, following symbolic links inside the root.
    ///
    /// The type is checked before opening: opening a device or FIFO of an image could have side
    /// effects.
    pub(crate) fn regular(&self, path: &Path) -> io::Result<std::fs::File> {
        let found =
            retry(|| rustix::fs::openat2(&self.fd, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), INSIDE))?;
        let stat = rustix::fs::fstat(&found)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = rustix::fs::open(magic(found.as_fd()), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(file.into())
    }
}

impl AsFd for ConfinedRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Repeats a scoped lookup, which the kernel aborts (EAGAIN) after any concurrent rename on the
/// system.
pub(crate) fn retry<T>(mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..64 {
        match open() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    open()
}

fn magic(fd: BorrowedFd<'_>) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn spelled(fd: BorrowedFd<'_>) -> io::Result<PathBuf> {
    let target = rustix::fs::readlinkat(CWD, magic(fd), Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(target.as_bytes())))
}

/// Returns whether `error` is the errno `errno`.
pub(crate) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Returns the status of `name` in `directory`, if it exists; does not follow a symbolic link.
pub(crate) fn stat(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<rustix::fs::Stat>> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes `name` and everything below it; does not follow symbolic links.
pub(crate) fn remove(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inside = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    for child in rustix::fs::Dir::read_from(&inside)? {
        let child = child?;
        let name = OsStr::from_bytes(child.file_name().to_bytes());
        if name != "." && name != ".." {
            remove(inside.as_fd(), name)?;
        }
    }
    Ok(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?)
}

/// Disk space and inodes of a tree, counting each hard-linked file once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl DiskUsage {
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

/// Measures the tree under `directory`, that directory included, and the content of the directory
/// `also`.
pub(crate) fn disk_usage(directory: BorrowedFd<'_>, also: Option<BorrowedFd<'_>>) -> io::Result<DiskUsage> {
    let mut usage = DiskUsage::default();
    let mut linked = std::collections::HashSet::new();
    add(&mut usage, &rustix::fs::fstat(directory)?);
    for directory in [directory].into_iter().chain(also) {
        add_disk_usage(directory, &mut usage, &mut linked)?;
    }
    Ok(usage)
}

fn add_disk_usage(
    directory: BorrowedFd<'_>,
    usage: &mut DiskUsage,
    linked: &mut std::collections::HashSet<u64>,
) -> io::Result<()> {
    for child in rustix::fs::Dir::read_from(directory)? {
        let child = child?;
        let name = OsStr::from_bytes(child.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_directory || stat.st_nlink == 1 || linked.insert(stat.st_ino) {
            add(usage, &stat);
        }
        if is_directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let inside = rustix::fs::openat(directory, name, flags, Mode::empty())?;
            add_disk_usage(inside.as_fd(), usage, linked)?;
        }
    }
    Ok(())
}

fn add(usage: &mut DiskUsage, stat: &rustix::fs::Stat) {
    usage.bytes = usage.bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
    usage.inodes += 1;
}
