//! Resolves paths in several layers as overlayfs would show them.
//!
//! Each step opens one name in one directory whose path has no symbolic links, so no lookup can
//! leave the layers; symbolic links are read and resolved here.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use crate::layer::confined_root::{ConfinedRoot, DEPTH_MAX};
use crate::layer::whiteout::{is_opaque, is_whiteout};

/// The same limit as in the kernel.
const SYMLINKS_MAX: usize = 40;

pub(crate) struct MergedLayers {
    /// Top-most first.
    pub(crate) layers: Vec<ConfinedRoot>,
    /// The directories of the last path, each with the layers that have a part of it.
    trail: Vec<Step>,
}

struct Step {
    name: OsString,
    layers: Vec<usize>,
}

/// The result of a lookup.
#[derive(Debug)]
pub(crate) struct Found {
    /// The path without symbolic links.
    pub(crate) real: PathBuf,
    /// The layers that have it, top-most first: more than one only for a directory.
    pub(crate) layers: Vec<usize>,
    pub(crate) is_directory: bool,
}

impl MergedLayers {
    /// Opens the layers at `paths`, top-most first.
    pub(crate) fn open<'a>(paths: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        let layers = paths.map(ConfinedRoot::open).collect::<io::Result<Vec<_>>>()?;
        let mut merged = Self { layers, trail: vec![Step { name: OsString::new(), layers: Vec::new() }] };
        merged.trail[0].layers = (0..merged.layers.len()).collect();
        merged.trail[0].layers = merged.parts(Path::new("."), 0)?;
        Ok(merged)
    }

    /// Finds `path`; symbolic links are followed inside the layers, except in the last component.
    /// Returns `None` if it does not exist.
    pub(crate) fn find(&mut self, path: &Path) -> io::Result<Option<Found>> {
        let mut left: Vec<OsString> = Vec::new();
        push_reversed(&mut left, path);
        self.rewind(&mut left);
        let mut symlinks = 0;
        while let Some(name) = left.pop() {
            if name == ".." {
                self.trail.truncate((self.trail.len() - 1).max(1));
                continue;
            }
            let real = self.here().join(&name);
            let Some((layer, stat)) = self.top(&real)? else { return Ok(None) };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if self.trail.len() <= DEPTH_MAX => {
                    let layers = self.parts(&real, layer)?;
                    self.trail.push(Step { name, layers });
                }
                FileType::Directory => return Ok(None),
                FileType::Symlink if !left.is_empty() => {
                    symlinks += 1;
                    if symlinks > SYMLINKS_MAX {
                        return Ok(None);
                    }
                    let target = rustix::fs::readlinkat(&self.layers[layer], &real, Vec::new())?;
                    let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                    if target.is_absolute() {
                        self.trail.truncate(1);
                    }
                    push_reversed(&mut left, target);
                }
                _ if left.is_empty() => return Ok(Some(Found { real, layers: vec![layer], is_directory: false })),
                _ => return Ok(None),
            }
        }
        let layers = self.trail.last().map(|step| step.layers.clone()).unwrap_or_default();
        Ok(Some(Found { real: self.here(), layers, is_directory: true }))
    }

    /// Returns the nearest layer below the top-most that would provide the directory `path` if the
    /// top-most did not.
    ///
    /// The path must have no symbolic links in the top-most layer.
    pub(crate) fn beneath(&mut self, path: &Path) -> io::Result<Option<usize>> {
        let Some(above) = path.parent() else { return Ok(None) };
        let Some(above) = self.find(above)? else { return Ok(None) };
        for &layer in above.layers.iter().skip(1) {
            if let Some(stat) = self.stat(layer, path)? {
                return Ok(FileType::from_raw_mode(stat.st_mode).is_dir().then_some(layer));
            }
        }
        Ok(None)
    }

    /// Goes back to the last directory that the new path shares with the previous one: a sibling
    /// costs one step.
    fn rewind(&mut self, left: &mut Vec<OsString>) {
        let shared = self.trail[1..].iter().zip(left.iter().rev()).take_while(|(step, name)| step.name == **name);
        let shared = shared.count();
        self.trail.truncate(shared + 1);
        left.truncate(left.len() - shared);
    }

    fn here(&self) -> PathBuf {
        self.trail[1..].iter().map(|step| &step.name).collect()
    }

    /// Returns the top-most layer that has `real`, unless a layer above hides it.
    fn top(&self, real: &Path) -> io::Result<Option<(usize, Stat)>> {
        let layers = self.trail.last().map(|step| step.layers.as_slice()).unwrap_or_default();
        for &layer in layers {
            if let Some(stat) = self.stat(layer, real)? {
                return Ok((!is_whiteout(&stat)).then_some((layer, stat)));
            }
        }
        Ok(None)
    }

    /// Returns the layers from `top` on whose directory `real` is part of the merged one.
    fn parts(&self, real: &Path, top: usize) -> io::Result<Vec<usize>> {
        let candidates = self.trail.last().map(|step| step.layers.as_slice()).unwrap_or_default();
        let mut parts = Vec::new();
        for &layer in candidates.iter().filter(|&&layer| layer >= top) {
            match self.stat(layer, real)? {
                None => {}
                Some(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
                    parts.push(layer);
                    if is_opaque(self.layers[layer].directory(real)?.as_fd())? {
                        break;
                    }
                }
                Some(_) => break,
            }
        }
        Ok(parts)
    }

    fn stat(&self, layer: usize, real: &Path) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.layers[layer], real, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Pushes the components of `path` onto a stack, the first on top.
fn push_reversed(pile: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    pile.extend(parts.rev().map(|part| part.as_os_str().to_owned()));
}
