//! Adds up the disk usage of a tree that a container writes, in slices.
//!
//! The container may change the tree meanwhile: [`TreeWalk`] documents how the walk stays inside.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, FileType, OFlags, Stat, fstat, statat};
use rustix::io::Errno;
use safe_fs::tree_walk::{DEPTH, TreeWalk};

/// Entries between two reads of the clock.
const STRIDE: u32 = 64;
/// The unit of `st_blocks` on every file system.
const BLOCK: u64 = 512;

/// The disk usage of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) bytes: u64,
    pub(super) inodes: u64,
    /// True if no part was moved or too deep.
    pub(super) whole: bool,
}

/// A walk through one or more trees, which can be paused.
#[derive(Debug)]
pub(super) struct Walk {
    way: TreeWalk,
    /// Trees not walked yet.
    tops: Vec<OwnedFd>,
    sum: Sum,
    /// Maximum depth. Deeper entries are not counted.
    deepest: usize,
    /// True if a part could not be walked.
    cut: bool,
}

impl Walk {
    /// Creates a walk through the existing ones of the trees below `dir`.
    pub(super) fn begin(dir: &Path, names: &[&str]) -> io::Result<Self> {
        // The walk must not change access times.
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

    /// Walks until `until`; returns the result when all trees were walked.
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

    /// Walks one entry; returns false at the end.
    fn step(&mut self) -> io::Result<bool> {
        if self.way.depth() == 0 {
            let Some(top) = self.tops.pop() else { return Ok(false) };
            self.sum.add(&fstat(&top)?);
            self.way.enter(top)?;
            return Ok(true);
        }
        let Some(entry) = self.way.read()? else {
            // After a directory was moved, the way back to the rest of this tree is lost.
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
            // Removed or replaced meanwhile.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Returns the entry `name`; `None` if it was removed.
fn look(at: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<Stat>> {
    match statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// A sum that counts hard links without remembering them: a file with n names counts 1/n for each.
#[derive(Debug, Default)]
struct Sum {
    /// In units of 1/[`PART`].
    inodes: u128,
    bytes: u128,
}

/// The divisor: large enough for the maximum number of hard links.
const PART: u128 = 1 << 40;

impl Sum {
    fn add(&mut self, stat: &Stat) {
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let names = if directory { 1 } else { u128::from(stat.st_nlink).max(1) };
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK);
        self.inodes += PART / names;
        self.bytes += PART * u128::from(bytes) / names;
    }

    /// Returns bytes and inodes.
    fn total(&self) -> (u64, u64) {
        let whole = |parts: u128| u64::try_from((parts + PART / 2) / PART).unwrap_or(u64::MAX);
        (whole(self.bytes), whole(self.inodes))
    }
}

#[cfg(test)]
#[path = "disk_walk_tests.rs"]
mod tests;
