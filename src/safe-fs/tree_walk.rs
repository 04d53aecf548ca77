//! Traverses a tree that containers may change at the same time.
//!
//! There is no recursion. Few directories are open at once. The parent is reopened by `..`, but
//! only if it is the directory that the walk came from, so no rename can lead outside of the tree.
//! Memory is a few bytes per level, and the number of levels is limited.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, DirEntry, Mode, OFlags, fstat, openat};
use rustix::path::Arg;

/// Maximum number of open directories.
pub const OPEN: usize = 32;
/// Maximum depth; real trees are less deep. The caller checks it.
pub const DEPTH: usize = 1 << 16;

/// The path from the top of a tree to the current directory.
#[derive(Debug)]
pub struct TreeWalk {
    levels: Vec<Level>,
    flags: OFlags,
}

#[derive(Debug)]
struct Level {
    /// `None` if it is too far up to be kept open.
    dir: Option<Dir>,
    /// Device and inode number.
    identity: (u64, u64),
    /// Position to continue reading after it is reopened.
    offset: i64,
}

impl TreeWalk {
    /// Creates a walk outside of any tree. Directories are opened with `more` flags in addition to
    /// its own.
    pub fn new(more: OFlags) -> Self {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Self { levels: Vec::new(), flags: flags | more }
    }

    /// Opens a directory; a link as the last component is not followed.
    pub fn open(&self, at: impl AsFd, name: impl Arg) -> rustix::io::Result<OwnedFd> {
        openat(at, name, self.flags, Mode::empty())
    }

    /// Returns the number of levels from the outside.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Enters a directory that was opened in the current one.
    pub fn enter(&mut self, dir: OwnedFd) -> io::Result<()> {
        let stat = fstat(&dir)?;
        self.levels.push(Level { dir: Some(Dir::new(dir)?), identity: (stat.st_dev, stat.st_ino), offset: 0 });
        if let Some(far) = self.levels.len().checked_sub(OPEN + 1) {
            self.levels[far].dir = None;
        }
        Ok(())
    }

    /// Returns the next entry; `None` at the end.
    pub fn read(&mut self) -> io::Result<Option<DirEntry>> {
        let Some(Level { dir: Some(dir), offset, .. }) = self.levels.last_mut() else { return Ok(None) };
        while let Some(entry) = dir.read().transpose()? {
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                *offset = entry.offset();
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Returns the current directory.
    pub fn here(&self) -> io::Result<BorrowedFd<'_>> {
        let dir = self.levels.last().and_then(|level| level.dir.as_ref());
        Ok(dir.ok_or(io::ErrorKind::NotFound)?.fd()?)
    }

    /// Returns the device of the current directory.
    pub fn device(&self) -> Option<u64> {
        self.levels.last().map(|level| level.identity.0)
    }

    /// Goes back to the parent; returns false if it is not the directory that the walk came from.
    /// The walk cannot continue then.
    pub fn up(&mut self) -> io::Result<bool> {
        let (below, above) = (self.levels.pop(), self.levels.last_mut());
        if let (Some(Level { dir: Some(below), .. }), Some(above)) = (below, above)
            && above.dir.is_none()
        {
            let dir = openat(below.fd()?, c"..", self.flags, Mode::empty())?;
            let stat = fstat(&dir)?;
            if (stat.st_dev, stat.st_ino) != above.identity {
                self.levels.clear();
                return Ok(false);
            }
            let mut dir = Dir::new(dir)?;
            dir.seek(above.offset)?;
            above.dir = Some(dir);
        }
        Ok(true)
    }

    /// Returns the number of open directories.
    pub fn open_dirs(&self) -> usize {
        self.levels.iter().filter(|level| level.dir.is_some()).count()
    }
}
