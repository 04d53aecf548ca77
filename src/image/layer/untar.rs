//! Unpacks the tar stream of one layer into a directory for overlayfs.
//!
//! The stream is treated as hostile. The kernel opens every parent directory inside the layer's
//! root. The last component is only created, replaced or linked relative to that descriptor and
//! never followed, and no device of an image is opened. Whiteouts become those of overlayfs: a
//! character device 0:0, or the opaque mark on a directory. All parts of the stream except file
//! contents go into the layer's tar-split.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::layer::confined_root::{ConfinedRoot, DEPTH_MAX, is, stat};
use crate::layer::free_space::{FreeSpace, NoRoom, SpaceError};
use crate::layer::layer_dir::{EntryPath, LayerDir};
use crate::layer::metadata::{apply_metadata, keeps_xattr, times};
use crate::layer::staged_layer::Pending;
use crate::layer::whiteout::{is_whiteout, mark_opaque};
use crate::limits::Limits;
use crate::tar::reader::{Entry, EntryKind, TarError, TarReader};
use crate::tar::tar_split::{TarSplit, TarSplitReader};

const BUFFER: usize = 64 * 1024;
/// The limit of common filesystems.
const NAME_MAX: usize = 255;
/// Paths in messages are truncated to this length.
const SHOWN_MAX: usize = 256;
/// Errors of the kernel for names, sizes and links that no filesystem supports: the layer is at
/// fault.
const NOT_OURS: [Errno; 6] = [Errno::LOOP, Errno::NAMETOOLONG, Errno::FBIG, Errno::TOOBIG, Errno::XDEV, Errno::MLINK];

/// A layer that could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UntarError {
    /// The stream is not a supported tar archive.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// An entry that is not allowed in a layer.
    #[error("image layer entry {path:?} cannot be unpacked: {why}")]
    Refused {
        /// The entry's path.
        path: String,
        /// The reason.
        why: &'static str,
    },
    /// The kernel returned an error for an entry.
    #[error("{doing} image layer entry {path:?}")]
    Make {
        /// The step.
        doing: &'static str,
        /// The entry's path.
        path: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// Too little disk space would be left.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The layer has more entries than allowed.
    #[error("the image layer has more than {0} entries, the maximum")]
    TooMany(u64),
}

impl model::ErrorClass for UntarError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Tar(_) | Self::Refused { .. } => model::ErrorKind::Invalid,
            Self::Make { source, .. } if NOT_OURS.iter().any(|errno| is(source, *errno)) => model::ErrorKind::Invalid,
            Self::Make { source, .. } => crate::store::durable::io_kind(source),
            Self::NoRoom(_) | Self::TooMany(_) => model::ErrorKind::Exhausted,
        }
    }
}

/// Unpacks the tar stream `source` into `fs` of the directory `layer`, and its tar-split beside
/// that.
///
/// Reads to the end of the stream; returns the remaining work, and the source.
pub(crate) fn untar<R: Read>(source: R, layer: &Path, limits: &Limits) -> Result<(Pending, R), UntarError> {
    let entries_max = limits.entries;
    let space = FreeSpace::look(layer, limits.reserve, 0).map_err(|error| no_space(error, layer))?;
    let files = layer.join("fs");
    let root = ConfinedRoot::open(&files).map_err(at("opening", &files))?;
    let tar_split = TarSplit::create(layer).map_err(at("creating the tar-split of", layer))?;
    let mut archive = TarReader::new(TarSplitReader::new(source, tar_split));
    let mut untar = Untar { layer_dir: LayerDir::new(&root, layer), space, buffer: vec![0; BUFFER].into_boxed_slice() };
    let mut entries = 0u64;
    while let Some(entry) = archive.next()? {
        entries += 1;
        if entries > entries_max {
            return Err(UntarError::TooMany(entries_max));
        }
        untar.entry(&entry, &mut archive)?;
        untar.account_tar_split(archive.source(), layer)?;
    }
    untar.layer_dir.leave()?;
    let mut rest = archive.into_source();
    // The bytes after the end of the archive belong to the stream as well.
    while rest.read(&mut untar.buffer).map_err(TarError::Read)? > 0 {
        untar.account_tar_split(&mut rest, layer)?;
    }
    let (source, tar_split) = rest.into_parts();
    tar_split.end().map_err(at("writing the tar-split of", layer))?;
    Ok((untar.layer_dir.pending, source))
}

struct Untar<'a> {
    layer_dir: LayerDir<'a>,
    space: FreeSpace,
    buffer: Box<[u8]>,
}

/// Adds the step and the path to a kernel error.
pub(crate) fn at<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> UntarError + 'a {
    move |source| UntarError::Make { doing, path: shown(path), source }
}

pub(crate) fn no_space(error: SpaceError, path: &Path) -> UntarError {
    match error {
        SpaceError::NoRoom(error) => error.into(),
        SpaceError::Unknown(error) => at("reading the free space of", path)(error),
    }
}

pub(crate) fn refused(path: &Path, why: &'static str) -> UntarError {
    UntarError::Refused { path: shown(path), why }
}

/// Returns the beginning of a path for a message; a path can be 1 MiB long.
pub(crate) fn shown(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    match bytes.get(..SHOWN_MAX) {
        Some(beginning) if bytes.len() > SHOWN_MAX => format!("{}…", String::from_utf8_lossy(beginning)),
        _ => path.to_string_lossy().into_owned(),
    }
}

/// Returns the path of an entry relative to the root: no `..`, no empty components, not too deep.
pub(crate) fn inside(raw: &[u8]) -> Result<PathBuf, UntarError> {
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
            long if long.len() > NAME_MAX => return Err(refused(shown, "a name longer than 255 bytes")),
            _ => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(refused(shown, "path too deep"));
                }
                path.push(OsStr::from_bytes(part));
            }
        }
    }
    Ok(path)
}

impl Untar<'_> {
    /// Accounts for what was written to the tar-split since the last call.
    fn account_tar_split<R>(&mut self, source: &mut TarSplitReader<R>, layer: &Path) -> Result<(), UntarError> {
        let written = source.tar_split.take_written();
        self.space.write(written).map_err(|error| no_space(error, layer))
    }

    fn entry<R: Read>(&mut self, entry: &Entry, archive: &mut TarReader<TarSplitReader<R>>) -> Result<(), UntarError> {
        let path = inside(&entry.path)?;
        self.space.make().map_err(|error| no_space(error, &path))?;
        let Some(entry_path) = EntryPath::new(&path) else { return self.whole_root(entry) };
        if let Some(hidden) = entry_path.name.as_bytes().strip_prefix(b".wh.") {
            return self.layer_dir.whiteout(&entry_path, hidden);
        }
        match entry.what {
            EntryKind::File => self.file(&entry_path, entry, archive),
            EntryKind::Directory => self.directory(&entry_path, entry),
            EntryKind::HardLink => self.layer_dir.hard_link(&entry_path, &entry.link),
            EntryKind::Symlink => {
                let target = OsString::from_vec(entry.link.clone());
                if target.is_empty() || entry.link.contains(&0) {
                    return Err(refused(&path, "symbolic link with an empty target"));
                }
                self.layer_dir.replacing(&entry_path, |fd| Ok(rustix::fs::symlinkat(&target, fd, entry_path.name)?))?;
                self.apply_node_metadata(&entry_path, entry, false)
            }
            EntryKind::CharDevice { major: 0, minor: 0 } => {
                // Overlayfs treats it as a whiteout, and other readers of the layer would see
                // another image.
                Err(refused(&path, "character device 0:0"))
            }
            EntryKind::CharDevice { major, minor } => {
                self.node(&entry_path, entry, FileType::CharacterDevice, rustix::fs::makedev(major, minor))
            }
            EntryKind::BlockDevice { major, minor } => {
                self.node(&entry_path, entry, FileType::BlockDevice, rustix::fs::makedev(major, minor))
            }
            EntryKind::Fifo => self.node(&entry_path, entry, FileType::Fifo, 0),
        }
    }

    /// Handles an entry for the root itself, which only sets its metadata.
    fn whole_root(&mut self, entry: &Entry) -> Result<(), UntarError> {
        let path = Path::new(".");
        if entry.what != EntryKind::Directory {
            return Err(refused(path, "the root of a layer must be a directory"));
        }
        self.layer_dir.leave()?;
        let fd = self.layer_dir.root.directory(path).map_err(at("opening", path))?;
        apply_metadata(fd.as_fd(), entry, path)
    }

    fn file<R: Read>(
        &mut self,
        entry_path: &EntryPath<'_>,
        entry: &Entry,
        archive: &mut TarReader<TarSplitReader<R>>,
    ) -> Result<(), UntarError> {
        let EntryPath { path, name, .. } = *entry_path;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = self
            .layer_dir
            .replacing(entry_path, |fd| Ok(rustix::fs::openat(fd, name, flags, Mode::RUSR | Mode::WUSR)?))?;
        let mut file = File::from(fd);
        if archive.left() > 0 {
            let stat = rustix::fs::fstat(&file).map_err(|errno| at("reading the status of", path)(errno.into()))?;
            archive.source().tar_split.file(&self.layer_dir.real(entry_path)?, stat.st_ino);
        }
        match &entry.segments {
            None => self.copy(archive, &mut file, 0, entry.size, path)?,
            Some(segments) => {
                for segment in segments {
                    self.space.segment().map_err(|error| no_space(error, path))?;
                    file.seek(SeekFrom::Start(segment.offset)).map_err(at("writing", path))?;
                    self.copy(archive, &mut file, segment.offset, segment.length, path)?;
                }
                file.set_len(entry.size).map_err(at("writing", path))?;
            }
        }
        archive.source().tar_split.check().map_err(at("writing the tar-split of", path))?;
        apply_metadata(file.as_fd(), entry, path)
    }

    /// Copies `length` bytes of content to `offset` of the file.
    fn copy<R: Read>(
        &mut self,
        archive: &mut TarReader<TarSplitReader<R>>,
        file: &mut File,
        offset: u64,
        mut length: u64,
        path: &Path,
    ) -> Result<(), UntarError> {
        archive.source().tar_split.run(offset, length);
        while length > 0 {
            let most = usize::try_from(length).unwrap_or(BUFFER).min(BUFFER);
            let count = archive.read(&mut self.buffer[..most]).map_err(TarError::Read)?;
            self.space.write(u64::try_from(count).unwrap_or(0)).map_err(|error| no_space(error, path))?;
            file.write_all(&self.buffer[..count]).map_err(at("writing", path))?;
            length = length.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    fn directory(&mut self, entry_path: &EntryPath<'_>, entry: &Entry) -> Result<(), UntarError> {
        let EntryPath { path, name, .. } = *entry_path;
        let fd = self.layer_dir.enter(entry_path.parent)?;
        let there = stat(fd, name).map_err(at("reading the status of", path))?;
        let is_directory = there.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir());
        if !is_directory {
            let hides = there.is_some_and(|stat| is_whiteout(&stat));
            self.layer_dir.replacing(entry_path, |fd| Ok(rustix::fs::mkdirat(fd, name, Mode::RWXU)?))?;
            let made = self.layer_dir.child(entry_path)?;
            if hides {
                mark_opaque(made.as_fd(), path)?;
            }
        }
        let real = self.layer_dir.real(entry_path)?;
        self.layer_dir.pending.listed(&real);
        let made = self.layer_dir.child(entry_path)?;
        apply_metadata(made.as_fd(), entry, path)
    }

    fn node(
        &mut self,
        entry_path: &EntryPath<'_>,
        entry: &Entry,
        kind: FileType,
        device: u64,
    ) -> Result<(), UntarError> {
        let name = entry_path.name;
        self.layer_dir.replacing(entry_path, |fd| Ok(rustix::fs::mknodat(fd, name, kind, Mode::empty(), device)?))?;
        self.apply_node_metadata(entry_path, entry, true)
    }

    /// Sets owner, mode and time of a file that must not be opened.
    fn apply_node_metadata(&mut self, entry_path: &EntryPath<'_>, entry: &Entry, mode: bool) -> Result<(), UntarError> {
        let EntryPath { path, name, parent } = *entry_path;
        if entry.xattrs.iter().any(|(name, _)| keeps_xattr(name) != Some(false)) {
            return Err(refused(path, "extended attribute on an entry that is neither a file nor a directory"));
        }
        let fd = self.layer_dir.enter(parent)?;
        let owner = (Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)));
        rustix::fs::chownat(fd, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| at("setting the owner of", path)(errno.into()))?;
        if mode {
            // Not a symbolic link: this function's caller has just created it.
            rustix::fs::chmodat(fd, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())
                .map_err(|errno| at("setting the mode of", path)(errno.into()))?;
        }
        rustix::fs::utimensat(fd, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| at("setting the time of", path)(errno.into()))
    }
}

#[cfg(test)]
#[path = "tests/untar.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/hostile.rs"]
mod hostile_tests;
