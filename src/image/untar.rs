//! Unpacking one layer's tar stream into a directory for overlayfs.
//!
//! The stream is hostile until shown otherwise. Every parent directory is opened by the kernel inside the layer's
//! root, the last component is only ever created, replaced or linked relative to that descriptor and never followed,
//! and no device of an image is opened. Whiteouts become what overlayfs expects: a character device 0:0, or the
//! opaque mark on a directory.
//!
//! A directory's time must survive what is put into it later. Instead of remembering every directory to the end,
//! the time is restored whenever the unpacker leaves a directory, so memory does not grow with the layer.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Uid, XattrFlags};
use rustix::io::Errno;

use crate::archive::{Archive, Entry, TarError, What};
use crate::looks::{dress, keeps_xattr, modified, restore_time, times};
use crate::root::{DEPTH_MAX, Root, look, remove};

const OPAQUE: &str = "trusted.overlay.opaque";
const BUFFER: usize = 128 * 1024;
/// Directories that entries imply but the layer does not list; their looks come from the layer below.
const IMPLIED_MAX: usize = 1 << 16;

/// A layer that was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UntarError {
    /// The stream is not a tar archive we can read.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// An entry that no honest layer has.
    #[error("layer entry {path:?}: {why}")]
    Refused {
        /// The entry's path.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The kernel refused to make an entry.
    #[error("{doing} layer entry {path:?}")]
    Make {
        /// The step.
        doing: &'static str,
        /// The entry's path.
        path: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// More entries than allowed.
    #[error("layer has more than {0} entries")]
    TooMany(u64),
}

impl UntarError {
    /// The class of this error.
    pub fn kind(&self) -> model::Kind {
        match self {
            Self::Tar(_) | Self::Refused { .. } => model::Kind::Invalid,
            Self::Make { source, .. } => crate::disk::io_kind(source),
            Self::TooMany(_) => model::Kind::Exhausted,
        }
    }
}

/// Unpacks `archive` into `root` and returns the directories that were implied, not listed.
pub(crate) fn untar<R: Read>(
    archive: &mut Archive<R>,
    root: &Root,
    entries_max: u64,
) -> Result<BTreeSet<PathBuf>, UntarError> {
    let mut untar = Untar { root, open: None, implied: BTreeSet::new(), buffer: vec![0; BUFFER].into_boxed_slice() };
    let mut entries = 0u64;
    while let Some(entry) = archive.next()? {
        entries += 1;
        if entries > entries_max {
            return Err(UntarError::TooMany(entries_max));
        }
        untar.entry(&entry, archive)?;
    }
    untar.leave()?;
    Ok(untar.implied)
}

struct Untar<'a> {
    root: &'a Root,
    /// The directory the last entry went into.
    open: Option<Open>,
    implied: BTreeSet<PathBuf>,
    buffer: Box<[u8]>,
}

struct Open {
    path: PathBuf,
    fd: OwnedFd,
    modified: Timespec,
}

/// Adds the step and the path to a kernel error.
pub(crate) fn at<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> UntarError + 'a {
    move |source| UntarError::Make { doing, path: path.to_string_lossy().into_owned(), source }
}

pub(crate) fn refused(path: &Path, why: &'static str) -> UntarError {
    UntarError::Refused { path: path.to_string_lossy().into_owned(), why }
}

/// The path of an entry relative to the root: no `..`, no empty parts, not too deep.
fn inside(raw: &[u8]) -> Result<PathBuf, UntarError> {
    let shown = Path::new(OsStr::from_bytes(raw));
    if raw.contains(&0) {
        return Err(refused(shown, "NUL in a path"));
    }
    let mut path = PathBuf::new();
    let mut depth = 0;
    for part in raw.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(refused(shown, "'..' in a path")),
            _ => {
                depth += 1;
                path.push(OsStr::from_bytes(part));
            }
        }
    }
    if depth > DEPTH_MAX { Err(refused(shown, "path too deep")) } else { Ok(path) }
}

impl Untar<'_> {
    fn entry<R: Read>(&mut self, entry: &Entry, archive: &mut Archive<R>) -> Result<(), UntarError> {
        let path = inside(&entry.path)?;
        let Some(name) = path.file_name() else { return self.whole_root(entry) };
        let parent = path.parent().unwrap_or(Path::new(""));
        if let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") {
            return self.whiteout(&path, parent, hidden);
        }
        match entry.what {
            What::File => self.file(&path, parent, name, entry, archive),
            What::Directory => self.directory(&path, parent, name, entry),
            What::HardLink => self.hard_link(&path, parent, name, entry),
            What::Symlink => {
                let target = OsString::from_vec(entry.link.clone());
                if target.is_empty() || entry.link.contains(&0) {
                    return Err(refused(&path, "symbolic link to nothing"));
                }
                self.replacing(&path, parent, name, |fd| Ok(rustix::fs::symlinkat(&target, fd, name)?))?;
                self.dress_node(&path, name, entry, false)
            }
            What::CharDevice { major, minor } => {
                self.node(&path, parent, name, entry, FileType::CharacterDevice, (major, minor))
            }
            What::BlockDevice { major, minor } => {
                self.node(&path, parent, name, entry, FileType::BlockDevice, (major, minor))
            }
            What::Fifo => self.node(&path, parent, name, entry, FileType::Fifo, (0, 0)),
        }
    }

    /// An entry for the root itself: only its looks can be set.
    fn whole_root(&mut self, entry: &Entry) -> Result<(), UntarError> {
        let path = Path::new(".");
        if entry.what != What::Directory {
            return Err(refused(path, "the root of a layer is a directory"));
        }
        self.leave()?;
        let fd = self.root.directory(path).map_err(at("opening", path))?;
        dress(fd.as_fd(), entry, path)
    }

    fn file<R: Read>(
        &mut self,
        path: &Path,
        parent: &Path,
        name: &OsStr,
        entry: &Entry,
        archive: &mut Archive<R>,
    ) -> Result<(), UntarError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd =
            self.replacing(path, parent, name, |fd| Ok(rustix::fs::openat(fd, name, flags, Mode::RUSR | Mode::WUSR)?))?;
        let mut file = File::from(fd);
        match &entry.segments {
            None => self.copy(archive, &mut file, entry.size, path)?,
            Some(segments) => {
                for segment in segments {
                    file.seek(SeekFrom::Start(segment.offset)).map_err(at("writing", path))?;
                    self.copy(archive, &mut file, segment.length, path)?;
                }
                file.set_len(entry.size).map_err(at("writing", path))?;
            }
        }
        dress(file.as_fd(), entry, path)
    }

    fn copy<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        file: &mut File,
        mut length: u64,
        path: &Path,
    ) -> Result<(), UntarError> {
        while length > 0 {
            let most = usize::try_from(length).unwrap_or(BUFFER).min(BUFFER);
            let count = archive.read(&mut self.buffer[..most]).map_err(TarError::Read)?;
            file.write_all(&self.buffer[..count]).map_err(at("writing", path))?;
            length = length.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    fn directory(&mut self, path: &Path, parent: &Path, name: &OsStr, entry: &Entry) -> Result<(), UntarError> {
        let fd = self.enter(parent)?;
        let there = look(fd, name).map_err(at("looking at", path))?;
        let is_directory = there.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir());
        if !is_directory {
            let hides = there.is_some_and(|stat| is_whiteout(&stat));
            self.replacing(path, parent, name, |fd| Ok(rustix::fs::mkdirat(fd, name, Mode::RWXU)?))?;
            let made = self.child(path, parent, name)?;
            if hides {
                mark_opaque(made.as_fd(), path)?;
            }
        }
        self.implied.remove(path);
        let made = self.child(path, parent, name)?;
        dress(made.as_fd(), entry, path)
    }

    fn hard_link(&mut self, path: &Path, parent: &Path, name: &OsStr, entry: &Entry) -> Result<(), UntarError> {
        let target = inside(&entry.link)?;
        let Some(target_name) = target.file_name() else {
            return Err(refused(path, "hard link to the root"));
        };
        if is_reserved(target_name) {
            return Err(refused(path, "hard link to a whiteout"));
        }
        let holder = self
            .root
            .directory(target.parent().unwrap_or(Path::new("")))
            .map_err(at("opening the target's directory of", path))?;
        let source = look(holder.as_fd(), target_name)
            .map_err(at("looking at the target of", path))?
            .ok_or_else(|| refused(path, "hard link to a file that is not in this layer"))?;
        let fd = self.enter(parent)?;
        // A name linked to itself must not be removed to make room for itself.
        if let Some(there) = look(fd, name).map_err(at("looking at", path))?
            && (there.st_dev, there.st_ino) == (source.st_dev, source.st_ino)
        {
            return Ok(());
        }
        self.replacing(path, parent, name, |fd| {
            Ok(rustix::fs::linkat(&holder, target_name, fd, name, AtFlags::empty())?)
        })
    }

    fn node(
        &mut self,
        path: &Path,
        parent: &Path,
        name: &OsStr,
        entry: &Entry,
        kind: FileType,
        (major, minor): (u32, u32),
    ) -> Result<(), UntarError> {
        let device = rustix::fs::makedev(major, minor);
        self.replacing(path, parent, name, |fd| Ok(rustix::fs::mknodat(fd, name, kind, Mode::empty(), device)?))?;
        self.dress_node(path, name, entry, true)
    }

    /// Owner, mode and time of something that must not be opened.
    fn dress_node(&self, path: &Path, name: &OsStr, entry: &Entry, mode: bool) -> Result<(), UntarError> {
        let Some(open) = &self.open else { return Ok(()) };
        if entry.xattrs.iter().any(|(name, _)| keeps_xattr(name) != Some(false)) {
            return Err(refused(path, "extended attribute on neither file nor directory"));
        }
        let owner = (Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)));
        rustix::fs::chownat(&open.fd, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| at("setting the owner of", path)(errno.into()))?;
        if mode {
            // Not a symbolic link, just made by us: nothing to follow.
            rustix::fs::chmodat(&open.fd, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())
                .map_err(|errno| at("setting the mode of", path)(errno.into()))?;
        }
        rustix::fs::utimensat(&open.fd, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| at("setting the time of", path)(errno.into()))
    }

    /// `.wh.name` hides `name` of the layers below, `.wh..wh..opq` all of a directory; never what this layer has.
    fn whiteout(&mut self, path: &Path, parent: &Path, hidden: &[u8]) -> Result<(), UntarError> {
        if hidden == b".wh..opq" {
            let fd = self.enter(parent)?;
            return mark_opaque(fd, path);
        }
        if hidden.starts_with(b".wh.") {
            // Bookkeeping of aufs that old builders left in their layers; it names no file.
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(refused(path, "whiteout of no file"));
        }
        let name = OsStr::from_bytes(hidden);
        let fd = self.enter(parent)?;
        match look(fd, name).map_err(at("looking at", path))? {
            None => Ok(rustix::fs::mknodat(fd, name, FileType::CharacterDevice, Mode::empty(), 0)
                .map_err(|errno| at("making the whiteout", path)(errno.into()))?),
            Some(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
                let made = self.child(path, parent, name)?;
                mark_opaque(made.as_fd(), path)
            }
            // A file of this layer already hides the one below.
            Some(_) => Ok(()),
        }
    }

    /// Makes something at `name`, removing what an earlier entry left there.
    fn replacing<T>(
        &mut self,
        path: &Path,
        parent: &Path,
        name: &OsStr,
        make: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Result<T, UntarError> {
        let fd = self.enter(parent)?;
        match make(fd) {
            Err(error) if error.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => {
                remove(fd, name).map_err(at("replacing", path))?;
                let made = make(fd).map_err(at("making", path));
                self.implied.retain(|implied| !implied.starts_with(path));
                made
            }
            other => other.map_err(at("making", path)),
        }
    }

    /// Opens the directory `name` in `parent`, which must not be a symbolic link.
    fn child(&mut self, path: &Path, parent: &Path, name: &OsStr) -> Result<OwnedFd, UntarError> {
        let fd = self.enter(parent)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(fd, name, flags, Mode::empty()).map_err(|errno| at("opening", path)(errno.into()))
    }

    /// Opens the directory `path`, making what is missing of it.
    fn enter(&mut self, path: &Path) -> Result<BorrowedFd<'_>, UntarError> {
        if self.open.as_ref().is_none_or(|open| open.path != path) {
            self.leave()?;
            let fd = self.open_or_make(path)?;
            let stat = rustix::fs::fstat(&fd).map_err(|errno| at("opening", path)(errno.into()))?;
            self.open = Some(Open { path: path.to_owned(), fd, modified: modified(&stat) });
        }
        match &self.open {
            Some(open) => Ok(open.fd.as_fd()),
            None => Err(refused(path, "directory vanished")),
        }
    }

    fn leave(&mut self) -> Result<(), UntarError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        restore_time(open.fd.as_fd(), open.modified).map_err(at("setting the time of", &open.path))
    }

    fn open_or_make(&mut self, path: &Path) -> Result<OwnedFd, UntarError> {
        let error = match self.root.directory(path) {
            Ok(fd) => return Ok(fd),
            Err(error) => error,
        };
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(at("opening", path)(error));
        };
        let missing = error.raw_os_error() == Some(Errno::NOENT.raw_os_error());
        let blocked = error.raw_os_error() == Some(Errno::NOTDIR.raw_os_error());
        if !missing && !blocked {
            return Err(at("opening", path)(error));
        }
        if self.implied.len() == IMPLIED_MAX {
            return Err(refused(path, "too many directories that are not listed"));
        }
        let holder = self.open_or_make(above)?;
        let before = rustix::fs::fstat(&holder).map_err(|errno| at("opening", path)(errno.into()))?;
        let hides = match look(holder.as_fd(), name).map_err(at("looking at", path))? {
            None => false,
            Some(stat) if is_whiteout(&stat) => {
                remove(holder.as_fd(), name).map_err(at("replacing", path))?;
                true
            }
            Some(_) => return Err(refused(path, "parent is not a directory, or a link to nothing")),
        };
        rustix::fs::mkdirat(&holder, name, Mode::from_raw_mode(0o755))
            .map_err(|errno| at("making", path)(errno.into()))?;
        let made = self.root.directory(path).map_err(at("opening", path))?;
        if hides {
            mark_opaque(made.as_fd(), path)?;
        }
        restore_time(holder.as_fd(), modified(&before)).map_err(at("setting the time of", above))?;
        self.implied.insert(path.to_owned());
        Ok(made)
    }
}

fn is_whiteout(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_char_device() && stat.st_rdev == 0
}

fn is_reserved(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".wh.")
}

fn mark_opaque(fd: BorrowedFd<'_>, path: &Path) -> Result<(), UntarError> {
    rustix::fs::fsetxattr(fd, OPAQUE, b"y", XattrFlags::empty())
        .map_err(|errno| at("marking as opaque the directory of", path)(errno.into()))
}

#[cfg(test)]
#[path = "untar_tests.rs"]
mod tests;
