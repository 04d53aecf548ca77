//! The part of a layer that can only be completed once the layers below are unpacked.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, XattrFlags};
use rustix::io::Errno;

use crate::layer::confined_root::{ConfinedRoot, remove, stat};
use crate::layer::hard_link::BadLink;
use crate::layer::merged_layers::MergedLayers;
use crate::layer::metadata::{MetadataCopier, modified, restore_time};
use crate::layer::staged_layer::Staged;
use crate::layer::whiteout::{OPAQUE, is_opaque, is_whiteout, make_whiteout};

/// The index of the layer itself in a stack with those below.
const OWN: usize = 0;

impl Staged {
    /// Completes the layer on top of those `below`, nearest first. Idempotent.
    ///
    /// - Creates hard links to files of the layers below: the files are shared.
    /// - Copies the metadata of directories that the layer implied but did not list; otherwise they
    ///   would have crisp's default owner and mode.
    /// - Hides everything below an opaque root: overlayfs ignores the mark there.
    pub(crate) fn link_across_layers(&self, below: &[PathBuf]) -> io::Result<()> {
        let files = self.files();
        let own = ConfinedRoot::open(&files)?;
        let opaque = !below.is_empty() && is_opaque(own.directory(Path::new("."))?.as_fd())?;
        if self.pending.links.is_empty() && (self.pending.implied.is_empty() || below.is_empty()) && !opaque {
            return Ok(());
        }
        let mut merged = MergedLayers::open([files.as_path()].into_iter().chain(below.iter().map(PathBuf::as_path)))?;
        for (path, target) in &self.pending.links {
            link(&mut merged, path, target)?;
        }
        let mut copier = MetadataCopier::default();
        // Deepest first: setting the metadata of a directory does not change the time of its
        // parent.
        for path in self.pending.implied.iter().rev() {
            if let Some(lower) = merged.beneath(path)? {
                let (from, to) = (merged.layers[lower].directory(path)?, merged.layers[OWN].directory(path)?);
                copier.dress(from.as_fd(), to.as_fd(), &rustix::fs::fstat(&from)?)?;
            }
        }
        if opaque { hide(&merged.layers) } else { Ok(()) }
    }
}

fn link(merged: &mut MergedLayers, path: &Path, target: &Path) -> io::Result<()> {
    let bad = |why| io::Error::other(BadLink::new(path, target, why));
    let found = merged.find(target)?.ok_or_else(|| bad("file not found"))?;
    let (Some(holder), Some(name)) = (found.real.parent(), found.real.file_name()) else {
        return Err(bad("the target is the root"));
    };
    let (false, [layer]) = (found.is_directory, &found.layers[..]) else {
        return Err(bad("the target is a directory"));
    };
    if *layer == OWN {
        // Readers differ on whether this means the earlier or the later file.
        return Err(bad("the layer has the target only after the link"));
    }
    let holder = merged.layers[*layer].directory(holder)?;
    let (Some(parent), Some(own_name)) = (path.parent(), path.file_name()) else {
        return Err(bad("the link is the root"));
    };
    let parent = merged.layers[OWN].directory(parent)?;
    let before = modified(&rustix::fs::fstat(&parent)?);
    if stat(parent.as_fd(), own_name)?.is_some() {
        remove(parent.as_fd(), own_name)?;
    }
    match rustix::fs::linkat(&holder, name, &parent, own_name, AtFlags::empty()) {
        Err(Errno::MLINK) => return Err(bad("the target has the maximum number of links of the filesystem")),
        other => other?,
    }
    restore_time(parent.as_fd(), before)
}

/// Hides all entries in the roots of the lower layers that the first layer does not have.
fn hide(layers: &[ConfinedRoot]) -> io::Result<()> {
    let top = |layer: &ConfinedRoot| layer.directory(Path::new("."));
    let [own, below @ ..] = layers else { return Ok(()) };
    let own = top(own)?;
    let before = modified(&rustix::fs::fstat(&own)?);
    for lower in below {
        let lower = top(lower)?;
        for child in rustix::fs::Dir::read_from(&lower)? {
            let child = child?;
            let name = std::ffi::OsStr::from_bytes(child.file_name().to_bytes());
            if name == "." || name == ".." || stat(lower.as_fd(), name)?.is_none_or(|stat| is_whiteout(&stat)) {
                continue;
            }
            match stat(own.as_fd(), name)? {
                None => make_whiteout(own.as_fd(), name)?,
                Some(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
                    let flags =
                        rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
                    let directory = rustix::fs::openat(&own, name, flags, Mode::empty())?;
                    rustix::fs::fsetxattr(&directory, OPAQUE, b"y", XattrFlags::empty())?;
                }
                Some(_) => {}
            }
        }
    }
    restore_time(own.as_fd(), before)
}

#[cfg(test)]
#[path = "tests/cross_layer.rs"]
mod tests;
