//! Hard links of a layer: to files it has itself, or to files of the layers below.
//!
//! Layers are unpacked at the same time, so a file of a layer below may not be there yet. Such a link is remembered,
//! with an empty file in its place, and made once all layers are there.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::layer::confined_root::{is, stat};
use crate::layer::layer_dir::{EntryPath, LayerDir};
use crate::layer::untar::{UntarError, at, inside, refused, shown};
use crate::layer::whiteout::{is_reserved, is_whiteout};

impl LayerDir<'_> {
    /// Makes a hard link to `link`, never following a symbolic link as the last part.
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
            Err(error) if is(&error, Errno::NOTDIR) => return Err(refused(path, "hard link to a file that is gone")),
            Err(error) => return Err(at("opening the target's directory of", path)(error)),
        };
        let Some(source) = stat(holder.as_fd(), to.name).map_err(at("looking at the target of", path))? else {
            return self.link_below(entry_path, target);
        };
        if is_whiteout(&source) {
            return Err(refused(path, "hard link to a file that is gone"));
        }
        if FileType::from_raw_mode(source.st_mode).is_dir() {
            return Err(refused(path, "hard link to a directory"));
        }
        let fd = self.enter(parent)?;
        // A name linked to itself must not be removed to make room for itself.
        if let Some(there) = stat(fd, name).map_err(at("looking at", path))?
            && (there.st_dev, there.st_ino) == (source.st_dev, source.st_ino)
        {
            return Ok(());
        }
        // A link to what is itself a link to a layer below.
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
            return Err(refused(
                path,
                "too many hard links to files that are not in this layer, or too long paths of them",
            ));
        }
        Ok(())
    }
}

/// A hard link that cannot be made because of what the layers below have.
#[derive(Debug, thiserror::Error)]
#[error("layer entry {path:?} is a hard link to {target:?}: {why}")]
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
