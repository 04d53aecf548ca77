//! Finds and creates mount targets inside the container's root, by descriptor: no symbolic link
//! leads out of it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, openat2};
use rustix::io::Errno;

use super::mounts::MountError;

/// Refuses a mount that covers the root or the kernel's proc file system. Single files of proc are
/// allowed, as tools such as lxcfs replace them.
pub(super) fn allowed(target: &Path, onto: &OwnedFd) -> Result<(), MountError> {
    const REPLACEABLE: [&str; 7] = ["cpuinfo", "diskstats", "loadavg", "meminfo", "stat", "swaps", "uptime"];
    let forbidden = || MountError::Forbidden(target.to_owned());
    if is_root(onto).map_err(|_| forbidden())? {
        return Err(forbidden());
    }
    let kind = rustix::fs::fstatfs(onto).map_err(|_| forbidden())?.f_type;
    let replaceable = target.parent() == Some(Path::new("/proc"))
        && target.file_name().and_then(OsStr::to_str).is_some_and(|n| REPLACEABLE.contains(&n));
    if kind == rustix::fs::PROC_SUPER_MAGIC && !replaceable { Err(forbidden()) } else { Ok(()) }
}

/// Compares the found directory, not its name: a link of the image may lead to the root.
pub(crate) fn is_root(found: &OwnedFd) -> io::Result<bool> {
    let identity = |fd: &OwnedFd| {
        let flags = StatxFlags::INO | StatxFlags::MNT_ID;
        rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, flags).map(|s| (s.stx_mnt_id, s.stx_ino))
    };
    Ok(identity(&open_in_root(Path::new("/"))?)? == identity(found)?)
}

/// How often a path lookup is repeated. The kernel gives up if a path leads upwards and any file on
/// the machine is renamed or mounted at the same time. Another container can cause some of these
/// errors, but not this many in sequence.
const LOOKS_MAX: usize = 10_000;

/// Opens `path` in the current root, never through the magic links of a proc file system.
pub(crate) fn open_in_root(path: &Path) -> io::Result<OwnedFd> {
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let relative = path.strip_prefix("/").unwrap_or(path);
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..LOOKS_MAX {
        match openat2(&root, relative, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how) {
            Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
            found => return Ok(found?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// The number of links that the kernel follows, too.
const LINKS_MAX: usize = 40;

/// Opens the target, and creates it as a directory or an empty file if it is missing. A link of the
/// image to a missing file is followed inside the root, and its target is created.
pub(crate) fn find_or_create(path: &Path, directory: bool) -> io::Result<OwnedFd> {
    make(path, directory, LINKS_MAX)
}

fn make(path: &Path, directory: bool, links: usize) -> io::Result<OwnedFd> {
    match open_in_root(path) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    let name = match path.components().next_back() {
        Some(Component::Normal(name)) => name,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let above = make(parent, true, links)?;
    let created = if directory {
        rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o755))
    } else {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(&above, name, flags, Mode::from_raw_mode(0o644)).map(drop)
    };
    match created {
        Ok(()) => open_in_root(path),
        Err(rustix::io::Errno::EXIST) if links > 0 => {
            let target = rustix::fs::readlinkat(&above, name, Vec::new())?;
            let target = Path::new(OsStr::from_bytes(target.as_bytes()));
            // An absolute target replaces the path; both are resolved from the container's root
            // again.
            make(&parent.join(target), directory, links - 1)
        }
        Err(errno) => Err(errno.into()),
    }
}
