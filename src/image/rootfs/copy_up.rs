//! Copies a tree of an image: contents, owners, modes, times, attributes, hard links, holes and
//! special files.
//!
//! The source does not change during the copy, and no other process has access to the copy yet.
//! Memory does not grow with the tree: hard-linked files are recorded in a directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::layer::metadata::{MetadataCopier, owners, times_of};
use crate::layer::whiteout::is_whiteout;

/// Copies the content and the metadata of the directory `from` to the directory `to`. `links` is an
/// empty directory on the file system of `to`, which the caller removes afterwards. Returns an
/// error soon after `given_up` was set.
pub(crate) fn copy_tree(
    from: OwnedFd,
    to: BorrowedFd<'_>,
    links: BorrowedFd<'_>,
    given_up: &AtomicBool,
) -> io::Result<()> {
    Copy { links, copier: MetadataCopier::default(), given_up }.directory(from, to)
}

/// Bytes copied between two checks for cancellation.
const PIECE: u64 = 8 << 20;

struct Copy<'a> {
    /// Has a second link to every file with several names, named by its inode number in the image.
    links: BorrowedFd<'a>,
    copier: MetadataCopier,
    given_up: &'a AtomicBool,
}

impl Copy<'_> {
    fn check(&self) -> io::Result<()> {
        if self.given_up.load(Ordering::Relaxed) { Err(io::Error::other("the copy was cancelled")) } else { Ok(()) }
    }

    /// Uses two descriptors for each level; an image has at most [`crate::layer::confined_root::DEPTH_MAX`]
    /// levels.
    fn directory(&mut self, from: OwnedFd, to: BorrowedFd<'_>) -> io::Result<()> {
        let mut entries = rustix::fs::Dir::new(from)?;
        while let Some(entry) = entries.read() {
            self.check()?;
            let (entry, from) = (entry?, entries.fd()?);
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let stat = match rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if is_whiteout(&stat) => continue,
                Ok(stat) => stat,
                // A whiteout in a directory of a single layer is listed but cannot be opened.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno.into()),
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => self.below(from, to, name)?,
                FileType::RegularFile => self.regular(from, to, name, &stat)?,
                FileType::Symlink => symlink(from, to, name, &stat)?,
                kind => special(to, name, kind, &stat)?,
            }
        }
        // Last, since creating the entries changed the time.
        self.copier.dress(entries.fd()?, to, &entries.stat()?)
    }

    fn below(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        rustix::fs::mkdirat(to, name, Mode::RWXU)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |above| rustix::fs::openat(above, name, flags, Mode::empty());
        self.directory(open(from)?, open(to)?.as_fd())
    }

    fn regular(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> io::Result<()> {
        let several = (stat.st_nlink > 1).then(|| format!("{}-{}", stat.st_dev, stat.st_ino));
        if let Some(same) = &several {
            match rustix::fs::linkat(self.links, same, to, name, AtFlags::empty()) {
                Ok(()) => return Ok(()),
                // It is the first one, or the file system allows no more links to it.
                Err(Errno::NOENT | Errno::MLINK) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let source = File::from(rustix::fs::openat(from, name, flags, Mode::empty())?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let copy = File::from(rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?);
        self.contents(&source, &copy)?;
        self.copier.dress(source.as_fd(), copy.as_fd(), stat)?;
        match several.map(|same| rustix::fs::linkat(to, name, self.links, same, AtFlags::empty())) {
            None | Some(Ok(()) | Err(Errno::EXIST | Errno::MLINK)) => Ok(()),
            Some(Err(errno)) => Err(errno.into()),
        }
    }

    /// Keeps holes: a small layer can contain a file larger than any disk.
    fn contents(&self, from: &File, to: &File) -> io::Result<()> {
        let length = rustix::fs::fstat(from)?.st_size;
        let mut at = 0;
        loop {
            self.check()?;
            let begin = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Ok(begin) => begin,
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno.into()),
            };
            let end = rustix::fs::seek(from, SeekFrom::Hole(begin))?.min(begin + PIECE);
            rustix::fs::seek(from, SeekFrom::Start(begin))?;
            rustix::fs::seek(to, SeekFrom::Start(begin))?;
            io::copy(&mut from.take(end - begin), &mut &*to)?;
            at = end;
        }
        Ok(rustix::fs::ftruncate(to, u64::try_from(length).unwrap_or(0))?)
    }
}

fn symlink(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> io::Result<()> {
    let target = rustix::fs::readlinkat(from, name, Vec::new())?;
    rustix::fs::symlinkat(target, to, name)?;
    apply_name_metadata(to, name, stat)
}

fn special(to: BorrowedFd<'_>, name: &OsStr, kind: FileType, stat: &Stat) -> io::Result<()> {
    rustix::fs::mknodat(to, name, kind, Mode::empty(), stat.st_rdev)?;
    apply_name_metadata(to, name, stat)?;
    // After the owner, since a new owner clears set-id bits. Not a link: it was just created here.
    rustix::fs::chmodat(to, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?;
    Ok(())
}

fn apply_name_metadata(to: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> io::Result<()> {
    let (owner, group) = owners(stat);
    rustix::fs::chownat(to, name, owner, group, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(rustix::fs::utimensat(to, name, &times_of(stat), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Opens a directory that crisp created.
pub(crate) fn open_directory(path: &std::path::Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
#[path = "copy_up_tests.rs"]
mod tests;
