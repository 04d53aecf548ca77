//! Free space that unpacking leaves on the file system: a full one also stops the daemon, the
//! kubelet and their logs.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, StatVfs};

/// Maximum use between two checks, or less for a small reserve; each concurrent unpacker can go below
/// the reserve by at most this.
const LOOKS: Reserve = Reserve { bytes: 4 << 20, inodes: 64 };
const LOOKS_PER_RESERVE: u64 = 8;
/// The block size of the usual file systems: the least that a piece of a file uses.
const BLOCK: u64 = 4096;

/// Space that must stay free: these numbers, or 1/20 of the bytes and 1/100 of the inodes of the
/// file system if that is less. The kubelet evicts pods at 10 % free bytes and 5 % free inodes, so
/// it acts before a pull is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

impl Default for Reserve {
    fn default() -> Self {
        Self { bytes: 512 << 20, inodes: 10_000 }
    }
}

/// Unpacking would use the reserve.
#[derive(Debug, thiserror::Error)]
#[error("no space left for image layers in {}: {free} {unit} are free, {wanted} needed, {reserve} must stay free", directory.display())]
pub struct NoRoom {
    directory: PathBuf,
    unit: &'static str,
    free: u64,
    wanted: u64,
    reserve: u64,
}

/// Checks regularly how much is free on the file system where a layer is unpacked.
#[derive(Debug)]
pub(crate) struct FreeSpace {
    directory: PathBuf,
    fd: OwnedFd,
    reserve: Reserve,
    /// Use since the last check.
    used: Reserve,
    /// Use after which the next check is due.
    next: Reserve,
}

/// The reason to stop.
#[derive(Debug)]
pub(crate) enum SpaceError {
    NoRoom(NoRoom),
    Unknown(io::Error),
}

impl FreeSpace {
    /// Checks immediately whether `directory` has space for `bytes`.
    pub(crate) fn look(directory: &Path, reserve: Reserve, bytes: u64) -> Result<Self, SpaceError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(directory, flags, Mode::empty()).map_err(unknown)?;
        let used = Reserve { bytes: 0, inodes: 0 };
        let mut space = Self { directory: directory.to_owned(), fd, reserve, used, next: used };
        space.check(bytes, 1)?;
        Ok(space)
    }

    /// Accounts for `bytes` that are about to be written.
    pub(crate) fn write(&mut self, bytes: u64) -> Result<(), SpaceError> {
        self.used.bytes = self.used.bytes.saturating_add(bytes);
        self.look_when_due()
    }

    /// Accounts for a piece of a file after a hole, which begins in a block of its own.
    pub(crate) fn segment(&mut self) -> Result<(), SpaceError> {
        self.write(BLOCK)
    }

    /// Accounts for a file that is about to be created, and for its first block.
    pub(crate) fn make(&mut self) -> Result<(), SpaceError> {
        self.used.inodes += 1;
        self.used.bytes = self.used.bytes.saturating_add(BLOCK);
        self.look_when_due()
    }

    fn look_when_due(&mut self) -> Result<(), SpaceError> {
        if self.used.bytes < self.next.bytes && self.used.inodes < self.next.inodes {
            return Ok(());
        }
        self.check(0, 0)
    }

    fn check(&mut self, bytes: u64, inodes: u64) -> Result<(), SpaceError> {
        let stat = rustix::fs::fstatvfs(&self.fd).map_err(unknown)?;
        let total = stat.f_blocks.saturating_mul(stat.f_frsize);
        // Some file systems create inodes on demand and report none.
        let reserve =
            Reserve { bytes: self.reserve.bytes.min(total / 20), inodes: self.reserve.inodes.min(stat.f_files / 100) };
        self.check_unit("bytes", free_bytes(&stat), bytes, reserve.bytes)?;
        self.check_unit("inodes", stat.f_favail, inodes, reserve.inodes)?;
        let part = |most: u64, reserve: u64| most.min(reserve / LOOKS_PER_RESERVE).max(1);
        self.next = Reserve { bytes: part(LOOKS.bytes, reserve.bytes), inodes: part(LOOKS.inodes, reserve.inodes) };
        self.used = Reserve { bytes: 0, inodes: 0 };
        Ok(())
    }

    fn check_unit(&self, unit: &'static str, free: u64, wanted: u64, reserve: u64) -> Result<(), SpaceError> {
        // Without a reserve only the kernel decides: it knows the real size of a file on disk.
        if reserve == 0 || free >= reserve.saturating_add(wanted) {
            return Ok(());
        }
        Err(SpaceError::NoRoom(NoRoom { directory: self.directory.clone(), unit, free, wanted, reserve }))
    }
}

/// Returns the kubelet's available bytes: without those that the file system reserves for root.
pub(crate) fn free_bytes(stat: &StatVfs) -> u64 {
    stat.f_bavail.saturating_mul(stat.f_frsize)
}

fn unknown(errno: rustix::io::Errno) -> SpaceError {
    SpaceError::Unknown(errno.into())
}
