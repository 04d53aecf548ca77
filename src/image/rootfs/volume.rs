//! Paths in an image: their type, and copies that a container can write to.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use model::LayerNumber;
use rustix::fs::FileType;
use safe_fs::FileError;

use crate::layer::confined_root::ConfinedRoot;
use crate::record::Image;
use crate::rootfs::copy_up::{copy_tree, open_directory};
use crate::rootfs::read_files::{RootfsError, find, show};
use crate::store::durable::io_kind;
use crate::store::layer_refs::HoldError;
use crate::store::{Store, durable};

/// A directory of a container that starts as a copy of a path in its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Absolute path in the container.
    pub path: PathBuf,
    /// Directory on the host; must not exist yet.
    pub directory: PathBuf,
}

/// The type of a file in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A device, FIFO or socket.
    Special,
}

/// A path of an image that could not be inspected or copied.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The image's layers were removed.
    #[error(transparent)]
    Gone(#[from] HoldError),
    /// The image could not be mounted.
    #[error(transparent)]
    View(#[from] RootfsError),
    /// The path has a symlink loop, leads through a file, or is too long.
    #[error("finding path {path:?} in the files of the image")]
    Find {
        /// The path in the image.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A volume must be a directory.
    #[error("the image declares {0:?} as a VOLUME, but has a file there: must be a directory, or absent")]
    NotADirectory(PathBuf),
    /// The copy failed.
    #[error("copying directory {path:?} of the image, which it declares as a VOLUME, to the host")]
    Copy {
        /// The path in the image.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A directory on the host could not be created or removed.
    #[error(transparent)]
    Disk(#[from] FileError),
}

impl model::ErrorClass for VolumeError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Gone(source) => source.kind(),
            Self::View(source) => source.kind(),
            Self::Find { .. } | Self::NotADirectory(_) => model::ErrorKind::Invalid,
            Self::Copy { source, .. } => io_kind(source),
            Self::Disk(source) => source.kind(),
        }
    }
}

impl Store {
    /// Returns the type of `path` in an image, following links inside the image; `None` if it does
    /// not exist. Blocks.
    pub fn inspect(&self, image: &Image, path: &Path) -> Result<Option<FileKind>, VolumeError> {
        let failed = |source| VolumeError::Find { path: path.to_owned(), source };
        let _pin = self.catalog.pin(image.chain.clone());
        let found = self.show(&self.lowers(image)?, |root| find(root, path))?.map_err(failed)?;
        Ok(found.map(|(_, stat)| match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => FileKind::Directory,
            FileType::RegularFile => FileKind::File,
            _ => FileKind::Special,
        }))
    }

    /// Creates each volume's directory and copies its path in the layers `lowers` to it, looked up
    /// inside the image. A missing path gives an empty directory of root. Created directories stay
    /// after a failure or a cancellation. Blocks.
    pub fn fill(&self, lowers: &[LayerNumber], volumes: &[Volume], given_up: &AtomicBool) -> Result<(), VolumeError> {
        if volumes.is_empty() {
            return Ok(());
        }
        self.show(lowers, |root| volumes.iter().try_for_each(|volume| fill_one(root, volume, given_up)))?
    }

    fn show<T: Send>(
        &self,
        lowers: &[LayerNumber],
        work: impl FnOnce(&ConfinedRoot) -> T + Send,
    ) -> Result<T, RootfsError> {
        show(&self.layers_dir(), lowers, &self.catalog.root.join("view"), work)
    }
}

fn fill_one(root: &ConfinedRoot, volume: &Volume, given_up: &AtomicBool) -> Result<(), VolumeError> {
    let Volume { path, directory } = volume;
    durable::make_directory(directory, 0o755).map_err(safe_fs::at("creating", directory))?;
    let inside = path.strip_prefix("/").unwrap_or(path);
    let finding = |source| VolumeError::Find { path: path.clone(), source };
    match find(root, inside).map_err(finding)? {
        None => return Ok(()),
        Some((_, stat)) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
            return Err(VolumeError::NotADirectory(path.clone()));
        }
        Some(_) => {}
    }
    let from = root.directory(inside).map_err(finding)?;
    let links = directory.with_extension("links");
    durable::make_directory(&links, 0o700).map_err(safe_fs::at("creating", &links))?;
    let copy = || copy_tree(from, open_directory(directory)?.as_fd(), open_directory(&links)?.as_fd(), given_up);
    copy().map_err(|source| VolumeError::Copy { path: path.clone(), source })?;
    Ok(safe_fs::remove_dir(&links)?)
}
