//! Adding up what a tree that a container made takes on the disk, a bit at a time.
//!
//! The container may do to the tree what it likes, also meanwhile: [`TreeWalk`] says how the walk keeps its way.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, FileType, OFlags, Stat, fstat, statat};
use rustix::io::Errno;
use safe_fs::tree_walk::{DEPTH, TreeWalk};

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
    way: TreeWalk,
    /// Trees that are still to be walked.
    tops: Vec<OwnedFd>,
    sum: Sum,
    /// Levels that are followed. What is below is not counted, but each level above it was.
    deepest: usize,
    /// Something could not be followed.
    cut: bool,
}

impl Walk {
    /// A walk through the trees below `dir` that are there.
    pub(super) fn begin(dir: &Path, names: &[&str]) -> io::Result<Self> {
        // Looking must not show in the container: no times of access.
        let way = TreeWalk::new(OFlags::NOATIME);
        let mut walk = Self { way, tops: Vec::new(), sum: Sum::default(), deepest: DEPTH, cut: false };
        for name in names {
            match walk.way.open(CWD, dir.join(name)) {
                Ok(top) => walk.tops.push(top),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(walk)
    }

    /// Goes on until `until`; what there is once all of it was seen.
    pub(super) fn advance(&mut self, until: Instant) -> io::Result<Option<Found>> {
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
        if self.way.depth() == 0 {
            let Some(top) = self.tops.pop() else { return Ok(false) };
            self.sum.add(&fstat(&top)?);
            self.way.enter(top)?;
            return Ok(true);
        }
        let Some(entry) = self.way.read()? else {
            // Where somebody moved it, the way to the rest of this tree is lost.
            self.cut |= !self.way.up()?;
            return Ok(true);
        };
        let name = entry.file_name();
        let Some(stat) = look(self.way.here()?, name)? else { return Ok(true) };
        self.sum.add(&stat);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && Some(stat.st_dev) == self.way.device() {
            self.down(name)?;
        }
        Ok(true)
    }

    fn down(&mut self, name: &CStr) -> io::Result<()> {
        if self.way.depth() >= self.deepest {
            self.cut = true;
            return Ok(());
        }
        match self.way.open(self.way.here()?, name) {
            Ok(inside) => self.way.enter(inside),
            // Gone, or something else by now.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
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
#[path = "disk_walk_tests.rs"]
mod tests;
