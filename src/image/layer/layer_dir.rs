//! The directory of a layer during unpacking.
//!
//! The time of a directory must not be changed by entries that are added later. The unpacker
//! restores it whenever it leaves a directory, instead of recording all directories until the end,
//! so memory does not grow with the layer.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, Timespec};
use rustix::io::Errno;

use crate::layer::confined_root::{ConfinedRoot, is, remove, stat};
use crate::layer::metadata::{modified, restore_time};
use crate::layer::replaced_files::ReplacedFiles;
use crate::layer::staged_layer::Pending;
use crate::layer::untar::{UntarError, at, refused};
use crate::layer::whiteout::{is_whiteout, mark_opaque};

pub(crate) struct LayerDir<'a> {
    pub(crate) root: &'a ConfinedRoot,
    /// The directory of the last entry.
    open: Option<Open>,
    replaced: ReplacedFiles,
    pub(crate) pending: Pending,
}

struct Open {
    path: PathBuf,
    /// Its path, without symbolic links.
    real: PathBuf,
    fd: OwnedFd,
    modified: Timespec,
}

/// The path of an entry, with its parent and its name.
#[derive(Clone, Copy)]
pub(crate) struct EntryPath<'a> {
    pub(crate) path: &'a Path,
    pub(crate) parent: &'a Path,
    pub(crate) name: &'a OsStr,
}

impl<'a> EntryPath<'a> {
    /// Returns `None` for the root.
    pub(crate) fn new(path: &'a Path) -> Option<Self> {
        Some(Self { path, parent: path.parent()?, name: path.file_name()? })
    }
}

impl<'a> LayerDir<'a> {
    /// Creates the state for unpacking into `root`; files that later entries replace are kept under
    /// the directory `layer` for the tar-split.
    pub(crate) fn new(root: &'a ConfinedRoot, layer: &Path) -> Self {
        Self { root, open: None, replaced: ReplacedFiles::new(layer), pending: Pending::default() }
    }

    /// Returns the path of `entry_path` in the layer without symbolic links.
    pub(crate) fn real(&mut self, entry_path: &EntryPath<'_>) -> Result<PathBuf, UntarError> {
        Ok(self.opened(entry_path.parent)?.real.join(entry_path.name))
    }

    /// Creates a file with `entry_path`'s name, after removing an earlier entry of that name.
    pub(crate) fn replacing<T>(
        &mut self,
        entry_path: &EntryPath<'_>,
        make: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Result<T, UntarError> {
        let EntryPath { path, parent, name } = *entry_path;
        match make(self.enter(parent)?) {
            Err(error) if is(&error, Errno::EXIST) => {}
            other => return other.map_err(at("making", path)),
        }
        let real = self.real(entry_path)?;
        self.pending.forget(&real);
        let Some(open) = &self.open else { return Err(refused(path, "the directory is not open")) };
        let fd = open.fd.as_fd();
        self.replaced.keep(fd, name).map_err(at("keeping the file replaced by", path))?;
        remove(fd, name).map_err(at("replacing", path))?;
        make(fd).map_err(at("making", path))
    }

    /// Opens the directory at `entry_path`, which must not be a symbolic link.
    pub(crate) fn child(&mut self, entry_path: &EntryPath<'_>) -> Result<OwnedFd, UntarError> {
        let fd = self.enter(entry_path.parent)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(fd, entry_path.name, flags, Mode::empty())
            .map_err(|errno| at("opening", entry_path.path)(errno.into()))
    }

    /// Opens the directory `path` and creates missing parts.
    pub(crate) fn enter(&mut self, path: &Path) -> Result<BorrowedFd<'_>, UntarError> {
        Ok(self.opened(path)?.fd.as_fd())
    }

    fn opened(&mut self, path: &Path) -> Result<&Open, UntarError> {
        let open = match self.open.take() {
            Some(open) if open.path == path => open,
            other => {
                self.open = other;
                self.leave()?;
                let (fd, real) = self.open_or_make(path)?;
                let stat = rustix::fs::fstat(&fd).map_err(|errno| at("opening", path)(errno.into()))?;
                Open { path: path.to_owned(), real, fd, modified: modified(&stat) }
            }
        };
        Ok(self.open.insert(open))
    }

    /// Leaves the directory of the last entry and restores its time.
    pub(crate) fn leave(&mut self) -> Result<(), UntarError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        restore_time(open.fd.as_fd(), open.modified).map_err(at("setting the time of", &open.path))
    }

    fn open_or_make(&mut self, path: &Path) -> Result<(OwnedFd, PathBuf), UntarError> {
        let error = match self.root.locate(path) {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(at("opening", path)(error));
        };
        if !is(&error, Errno::NOENT) && !is(&error, Errno::NOTDIR) {
            return Err(at("opening", path)(error));
        }
        let (holder, above_real) = self.open_or_make(above)?;
        let before = rustix::fs::fstat(&holder).map_err(|errno| at("opening", path)(errno.into()))?;
        let hides = match stat(holder.as_fd(), name).map_err(at("reading the status of", path))? {
            None => false,
            Some(stat) if is_whiteout(&stat) => {
                remove(holder.as_fd(), name).map_err(at("replacing", path))?;
                true
            }
            Some(_) => return Err(refused(path, "parent is not a directory, or is a dangling link")),
        };
        rustix::fs::mkdirat(&holder, name, Mode::from_raw_mode(0o755))
            .map_err(|errno| at("making", path)(errno.into()))?;
        let made = self.root.directory(path).map_err(at("opening", path))?;
        restore_time(holder.as_fd(), modified(&before)).map_err(at("setting the time of", above))?;
        let real = above_real.join(name);
        if hides {
            // A new directory in place of a whiteout: it hides the one below.
            mark_opaque(made.as_fd(), path)?;
        } else if !self.pending.add_implicit_dir(real.clone()) {
            return Err(refused(
                path,
                "too many directories that the layer does not list, or their paths are too long",
            ));
        }
        Ok((made, real))
    }
}
