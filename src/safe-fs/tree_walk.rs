//! The way down into a tree that containers may change meanwhile, and back up.
//!
//! Nothing recurses. Few directories are open at once, and the way back up is found by `..`, but only into the very directory that
//! the way down came from: no rename leads out of the tree. Memory is a few bytes for each level, and levels have an end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, DirEntry, Mode, OFlags, fstat, openat};
use rustix::path::Arg;

/// Directories that are open at once.
pub const OPEN: usize = 32;
/// No honest tree is deeper. Whoever goes down looks at it.
pub const DEPTH: usize = 1 << 16;

/// From the top of a tree to where somebody is.
#[derive(Debug)]
pub struct TreeWalk {
    levels: Vec<Level>,
    flags: OFlags,
}

#[derive(Debug)]
struct Level {
    /// None while it is too far up to be kept open.
    dir: Option<Dir>,
    /// Device and number.
    identity: (u64, u64),
    /// Where to go on reading once it is opened again.
    offset: i64,
}

impl TreeWalk {
    /// Outside of any tree. Directories are opened with `more` flags than it takes.
    pub fn new(more: OFlags) -> Self {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Self { levels: Vec::new(), flags: flags | more }
    }

    /// Opens a directory, through no link at its end.
    pub fn open(&self, at: impl AsFd, name: impl Arg) -> rustix::io::Result<OwnedFd> {
        openat(at, name, self.flags, Mode::empty())
    }

    /// Levels between the outside and here.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// One level down, into a directory that was opened here.
    pub fn enter(&mut self, dir: OwnedFd) -> io::Result<()> {
        let stat = fstat(&dir)?;
        self.levels.push(Level { dir: Some(Dir::new(dir)?), identity: (stat.st_dev, stat.st_ino), offset: 0 });
        if let Some(far) = self.levels.len().checked_sub(OPEN + 1) {
            self.levels[far].dir = None;
        }
        Ok(())
    }

    /// What comes next here; none at the end.
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

    /// The directory here.
    pub fn here(&self) -> io::Result<BorrowedFd<'_>> {
        let dir = self.levels.last().and_then(|level| level.dir.as_ref());
        Ok(dir.ok_or(io::ErrorKind::NotFound)?.fd()?)
    }

    /// The device of the directory here.
    pub fn device(&self) -> Option<u64> {
        self.levels.last().map(|level| level.identity.0)
    }

    /// Back to the level above; false where that is not the one that the way came from. Then there is no way on.
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

    /// How many directories are open.
    pub fn open_dirs(&self) -> usize {
        self.levels.iter().filter(|level| level.dir.is_some()).count()
    }
}
