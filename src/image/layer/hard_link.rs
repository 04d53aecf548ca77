//! Hard links of a layer, to its own files or to files of the layers below.
//!
//! Layers are unpacked concurrently, so a file of a layer below may not exist yet. Such a link is
//! recorded, with an empty file as a placeholder, and created once all layers are unpacked.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::layer::confined_root::{is, stat};
use crate::layer::layer_dir::{EntryPath, LayerDir};
use crate::layer::untar::{UntarError, at, inside, refused, shown};
use crate::layer::whiteout::{is_reserved, is_whiteout};

impl LayerDir<'_> {
    /// Creates a hard link to `link`; a symbolic link as the last component is not followed.
    pub(crate) fn hard_link(&mut self, entry_path: &EntryPath<'_>, link: &[u8]) -> Result<(), UntarError> {
        let EntryPath { path, parent, name } = *entry_path;
        let target = inside(link)?;
        let Some(to) = EntryPath::new(&target) else { return Err(refused(path, "hard link to the root")) };
        if is_reserved(to.name) {
            return Err(refused(path, "hard link to a whiteout"));
        }
        let (holder, real) = match self.root.locate(to.parent) {
            Ok(found) => found,
            Err(error) if is(&error, Errno::NOENT) => return self.link_below(entry_path, target),
            Err(error) if is(&error, Errno::NOTDIR) => return Err(refused(path, "hard link to a removed file")),
            Err(error) => return Err(at("opening the target's directory of", path)(error)),
        };
        let Some(source) = stat(holder.as_fd(), to.name).map_err(at("reading the status of the target of", path))?
        else {
            return self.link_below(entry_path, target);
        };
        if is_whiteout(&source) {
            return Err(refused(path, "hard link to a removed file"));
        }
        if FileType::from_raw_mode(source.st_mode).is_dir() {
            return Err(refused(path, "hard link to a directory"));
        }
        let fd = self.enter(parent)?;
        // A name linked to itself must not be replaced.
        if let Some(there) = stat(fd, name).map_err(at("reading the status of", path))?
            && (there.st_dev, there.st_ino) == (source.st_dev, source.st_ino)
        {
            return Ok(());
        }
        // The target is itself a link to a layer below.
        if let Some(target) = self.pending.links.get(&real.join(to.name)).cloned() {
            return self.link_below(entry_path, target);
        }
        self.replacing(entry_path, |fd| Ok(rustix::fs::linkat(&holder, to.name, fd, name, AtFlags::empty())?))
    }

    fn link_below(&mut self, entry_path: &EntryPath<'_>, target: PathBuf) -> Result<(), UntarError> {
        let EntryPath { path, name, .. } = *entry_path;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.replacing(entry_path, |fd| Ok(rustix::fs::openat(fd, name, flags, Mode::empty())?))?;
        let real = self.real(entry_path)?;
        if !self.pending.link(real, target) {
            return Err(refused(path, "too many hard links to files of other layers, or their paths are too long"));
        }
        Ok(())
    }
}

/// A hard link that cannot be created because of the content of the layers below.
#[derive(Debug, thiserror::Error)]
#[error("image layer entry {path:?} is a hard link to {target:?}: {why}")]
pub(crate) struct BadLink {
    path: String,
    target: String,
    why: &'static str,
}

impl BadLink {
    pub(crate) fn new(path: &Path, target: &Path, why: &'static str) -> Self {
        Self { path: shown(path), target: shown(target), why }
    }
}
