//! Relabels a volume and everything in it with the label of a container's files.
//!
//! Containers may change the tree meanwhile. Every entry is opened by name in an open directory and
//! labelled through its descriptor. Links are not followed, and mounts in the volume are neither
//! entered nor labelled, since they may be any directory of the host. [`TreeWalk`] documents the walk.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use model::{ErrorClass, ErrorKind};
use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, XattrFlags, fstat, getxattr, openat2, readlinkat, setxattr,
};
use rustix::io::Errno;
use safe_fs::tree_walk::{DEPTH, TreeWalk};

const ATTRIBUTE: &CStr = c"security.selinux";

/// Relabelling these would break the host: the list of containerd and CRI-O, with today's locations.
const FORBIDDEN: [&str; 28] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/etc/passwd",
    "/etc/pki",
    "/etc/shadow",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/sbin",
    "/var",
    "/var/lib",
    "/var/log",
];

#[derive(Debug, thiserror::Error)]
pub enum RelabelError {
    #[error("changing the SELinux label of {0} is not allowed: it is a system directory of the host")]
    Forbidden(PathBuf),
    #[error("changing SELinux labels below {0}: too many nested directories, at most {DEPTH}")]
    Deep(PathBuf),
    #[error("changing SELinux labels below {path}: a directory was moved meanwhile")]
    Moved { path: PathBuf },
    #[error("changing the SELinux label of {path}")]
    Failed { path: PathBuf, source: io::Error },
}

impl ErrorClass for RelabelError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Forbidden(_) => ErrorKind::Invalid,
            Self::Deep(_) | Self::Moved { .. } => ErrorKind::Precondition,
            Self::Failed { .. } => ErrorKind::Internal,
        }
    }
}

/// Sets `label` on the target of `path` and on everything below it. Returns false if its file system
/// does not support labels. Blocks.
pub fn relabel(path: &Path, label: &str) -> Result<bool, RelabelError> {
    let failed = |source: io::Error| RelabelError::Failed { path: path.to_owned(), source };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let top = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
    // Checks the resolved path, since `path` may be a link.
    let found = readlinkat(CWD, through(&top), Vec::new()).map_err(|e| failed(e.into()))?;
    if FORBIDDEN.iter().any(|place| found.as_bytes() == place.as_bytes()) {
        return Err(RelabelError::Forbidden(path.to_owned()));
    }
    match set(&top, label) {
        Err(Errno::OPNOTSUPP) => return Ok(false),
        set => set.map_err(|e| failed(e.into()))?,
    }
    if is_directory(&top).map_err(failed)? {
        Tree { way: TreeWalk::new(OFlags::empty()), label }.walk(&top, path)?;
    }
    Ok(true)
}

struct Tree<'a> {
    way: TreeWalk,
    label: &'a str,
}

impl Tree<'_> {
    fn walk(mut self, top: &OwnedFd, path: &Path) -> Result<(), RelabelError> {
        self.enter(top).map_err(|source| RelabelError::Failed { path: path.to_owned(), source })?;
        self.go_on(path)
    }

    fn go_on(&mut self, path: &Path) -> Result<(), RelabelError> {
        let failed = |source: io::Error| RelabelError::Failed { path: path.to_owned(), source };
        while self.way.depth() > 0 {
            // A deeper tree fails the container, so that it cannot exhaust the host's memory.
            if self.way.depth() > DEPTH {
                return Err(RelabelError::Deep(path.to_owned()));
            }
            if !self.step().map_err(failed)? && !self.way.up().map_err(failed)? {
                return Err(RelabelError::Moved { path: path.to_owned() });
            }
        }
        Ok(())
    }

    /// Labels the next entry; returns false at the end of the directory.
    fn step(&mut self) -> io::Result<bool> {
        let Some(entry) = self.way.read()? else { return Ok(false) };
        let Some(found) = open_entry(self.way.here()?, entry.file_name())? else { return Ok(true) };
        match set(&found, self.label) {
            // Removed since it was opened, or a file type without labels.
            Err(Errno::NOENT | Errno::OPNOTSUPP) => return Ok(true),
            set => set?,
        }
        if is_directory(&found)? {
            self.enter(&found)?;
        }
        Ok(true)
    }

    fn enter(&mut self, directory: &OwnedFd) -> io::Result<()> {
        self.way.enter(self.way.open(directory, c".")?)
    }
}

/// Opens an entry; returns `None` if it no longer exists or is a mount point.
fn open_entry(at: impl AsFd, name: &CStr) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    loop {
        match openat2(&at, name, flags, Mode::empty(), how) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::NOENT | Errno::XDEV) => return Ok(None),
            found => return Ok(Some(found?)),
        }
    }
}

fn is_directory(found: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(found)?.st_mode) == FileType::Directory)
}

/// Sets the label unless it is already equal, so that a correctly labelled read-only volume works and
/// change times are kept.
fn set(found: &OwnedFd, label: &str) -> rustix::io::Result<()> {
    let path = through(found);
    let mut now = [0; 4096];
    if let Ok(length) = getxattr(path.as_str(), ATTRIBUTE, &mut now[..])
        && now[..length].strip_suffix(b"\0").unwrap_or(&now[..length]) == label.as_bytes()
    {
        return Ok(());
    }
    setxattr(path.as_str(), ATTRIBUTE, label.as_bytes(), XattrFlags::empty())
}

/// Returns a path to the object of a descriptor, even if that is a link.
fn through(found: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", found.as_raw_fd())
}

#[cfg(test)]
#[path = "relabel_tests.rs"]
mod tests;
