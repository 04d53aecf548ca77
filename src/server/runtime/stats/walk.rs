//! Adding up what a tree that a container made takes on the disk, a bit at a time.
//!
//! The container may do to the tree what it likes, also meanwhile. Nothing recurses; few descriptors are open at once and
//! the way back up is found by `..`, but only into the very directory that the way down came from: no rename leads out
//! of the tree. Memory is a few bytes for each level, and levels have an end.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

/// Directories that are open at once.
const OPEN: usize = 32;
/// How deep a tree is followed. What is below is not counted, but each level above it was.
const DEPTH: usize = 1 << 16;
/// Entries between two looks at the clock.
const STRIDE: u32 = 64;
/// The unit of `st_blocks`, whatever the file system's own is.
const BLOCK: u64 = 512;

/// What a tree takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) bytes: u64,
    pub(super) inodes: u64,
    /// Nothing was moved away on the way, or was too deep.
    pub(super) whole: bool,
}

/// A walk through one or more trees, which can be stopped and taken up again.
#[derive(Debug)]
pub(super) struct Walk {
    /// From the top of the tree to where the walk is.
    levels: Vec<Level>,
    /// Trees that are still to be walked.
    tops: Vec<OwnedFd>,
    sum: Sum,
    /// Levels that are followed.
    deepest: usize,
    /// Something could not be followed.
    cut: bool,
}

#[derive(Debug)]
struct Level {
    /// None while it is too far up to be kept open.
    dir: Option<Dir>,
    device: u64,
    inode: u64,
    /// Where to go on reading once it is opened again.
    offset: i64,
}

impl Walk {
    /// A walk through the trees below `dir` that are there.
    pub(super) fn begin(dir: &Path, names: &[&str]) -> io::Result<Self> {
        let (levels, tops, sum) = (Vec::new(), Vec::new(), Sum::default());
        let mut walk = Self { levels, tops, sum, deepest: DEPTH, cut: false };
        for name in names {
            match open(CWD, dir.join(name)) {
                Ok(top) => walk.tops.push(top),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(walk)
    }

    /// Goes on until `until`; what there is once all of it was seen.
    pub(super) fn go_on(&mut self, until: Instant) -> io::Result<Option<Found>> {
        loop {
            for _ in 0..STRIDE {
                if !self.step()? {
                    let (bytes, inodes) = self.sum.total();
                    return Ok(Some(Found { bytes, inodes, whole: !self.cut }));
                }
            }
            if Instant::now() >= until {
                return Ok(None);
            }
        }
    }

    /// One entry further; false at the end.
    fn step(&mut self) -> io::Result<bool> {
        let Some(level) = self.levels.last_mut() else {
            let Some(top) = self.tops.pop() else { return Ok(false) };
            let stat = fstat(&top)?;
            self.sum.add(&stat);
            self.enter(top, &stat)?;
            return Ok(true);
        };
        let Some(dir) = &mut level.dir else { return self.up() };
        let entry = match dir.read() {
            Some(entry) => entry?,
            None => return self.up(),
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            return Ok(true);
        }
        level.offset = entry.offset();
        let (at, device) = (dir.fd()?, level.device);
        let found = look(at, name)?;
        if let Some(stat) = found {
            self.sum.add(&stat);
        }
        if let Some(stat) = found.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
            && stat.st_dev == device
        {
            return self.down(name);
        }
        Ok(true)
    }

    fn down(&mut self, name: &CStr) -> io::Result<bool> {
        if self.levels.len() >= self.deepest {
            self.cut = true;
            return Ok(true);
        }
        let Some(dir) = self.levels.last().and_then(|level| level.dir.as_ref()) else { return Ok(true) };
        match open(dir.fd()?, name) {
            Ok(inside) => {
                let stat = fstat(&inside)?;
                self.enter(inside, &stat)?;
            }
            // Gone, or something else by now.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(true)
    }

    fn enter(&mut self, dir: OwnedFd, stat: &Stat) -> io::Result<()> {
        self.levels.push(Level { dir: Some(Dir::new(dir)?), device: stat.st_dev, inode: stat.st_ino, offset: 0 });
        if let Some(far) = self.levels.len().checked_sub(OPEN + 1) {
            self.levels[far].dir = None;
        }
        Ok(())
    }

    /// Back to the level above, which has to be the one that the walk came from.
    fn up(&mut self) -> io::Result<bool> {
        let (below, above) = (self.levels.pop(), self.levels.last_mut());
        if let (Some(Level { dir: Some(below), .. }), Some(above)) = (below, above)
            && above.dir.is_none()
        {
            let dir = open(below.fd()?, c"..")?;
            let stat = fstat(&dir)?;
            if (stat.st_dev, stat.st_ino) == (above.device, above.inode) {
                let mut dir = Dir::new(dir)?;
                dir.seek(above.offset)?;
                above.dir = Some(dir);
            } else {
                // Somebody moved it. The way to the rest of this tree is lost.
                self.cut = true;
                self.levels.clear();
            }
        }
        Ok(true)
    }
}

/// What is called `name`; none where it is gone.
fn look(at: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<Stat>> {
    match statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn open(at: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    // Looking must not show in the container: no times of access.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOATIME;
    openat(at, name, flags, Mode::empty())
}

/// A sum that needs no memory of hard links: a file that has n names counts for a n-th at each of them.
#[derive(Debug, Default)]
struct Sum {
    /// In parts of [`PART`].
    inodes: u128,
    bytes: u128,
}

/// One, in parts that are fine enough for as many names as a file can have.
const PART: u128 = 1 << 40;

impl Sum {
    fn add(&mut self, stat: &Stat) {
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let names = if directory { 1 } else { u128::from(stat.st_nlink).max(1) };
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK);
        self.inodes += PART / names;
        self.bytes += PART * u128::from(bytes) / names;
    }

    /// Bytes and inodes.
    fn total(&self) -> (u64, u64) {
        let whole = |parts: u128| u64::try_from((parts + PART / 2) / PART).unwrap_or(u64::MAX);
        (whole(self.bytes), whole(self.inodes))
    }
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
