//! Masked and read-only paths. Applied after all mounts, so that they are found in volumes too.
//!
//! libcontainer does this before volumes are mounted, and a read-only path loses more than write
//! access.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, open_tree,
};
use sys::mount::{Attributes, NOEXEC, NOSUID, PRIVATE, RDONLY, Reach, set_attributes};

use crate::rootfs::mount_propagation::PropagationGuard;
use crate::rootfs::mount_target::{is_root, open_in_root};

#[derive(Debug, thiserror::Error)]
pub(crate) enum MaskError {
    #[error("masking {path} in the container: {source}")]
    Hide { path: PathBuf, source: io::Error },
    #[error("making {path} read-only in the container: {source}")]
    ReadOnly { path: PathBuf, source: io::Error },
    #[error("opening the container's /dev/null to mask files: {0}")]
    Null(io::Error),
}

/// The file that covers a masked file: the container's own, since a change of its mode must not
/// change a file of the host.
#[derive(Debug)]
pub(crate) struct NullDevice(OwnedFd);

impl NullDevice {
    /// Opens it. Must run before the container can change `/dev`.
    pub(crate) fn open() -> Result<Self, MaskError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let null = rustix::fs::open("/dev/null", flags, Mode::empty()).map_err(|e| MaskError::Null(e.into()))?;
        if is_null(&null).map_err(|e| MaskError::Null(e.into()))? {
            Ok(Self(null))
        } else {
            Err(MaskError::Null(io::Error::other("is something else")))
        }
    }
}

/// Returns whether the found file is the null device.
pub(crate) fn is_null(found: &OwnedFd) -> rustix::io::Result<bool> {
    let stat = fstat(found)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == (1, 3))
}

/// Covers the paths that exist. `label` is the SELinux label of the container's files.
pub(crate) fn apply(
    masked: &[String],
    readonly: &[String],
    null: &NullDevice,
    label: Option<&str>,
    propagation: &mut PropagationGuard,
) -> Result<(), MaskError> {
    for path in readonly {
        let failed = |source| MaskError::ReadOnly { path: path.into(), source };
        if let Some(found) = find(Path::new(path)).map_err(failed)? {
            make_read_only(found, propagation).map_err(failed)?;
        }
    }
    for path in masked {
        let failed = |source| MaskError::Hide { path: path.into(), source };
        if let Some(found) = find(Path::new(path)).map_err(failed)? {
            mask(found, null, label, propagation).map_err(failed)?;
        }
    }
    Ok(())
}

/// Opens the file that `path` leads to inside the root.
fn find(path: &Path) -> io::Result<Option<OwnedFd>> {
    match open_in_root(path) {
        Ok(found) if is_root(&found)? => Err(io::Error::other("it is the root")),
        Ok(found) => Ok(Some(found)),
        Err(missing) if matches!(missing.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

fn make_read_only(found: OwnedFd, propagation: &mut PropagationGuard) -> io::Result<()> {
    let tree = copy(&found, OpenTreeFlags::AT_RECURSIVE)?;
    let attributes = Attributes { set: RDONLY, clear: 0, propagation: PRIVATE };
    set_attributes(&tree, attributes, Reach::Tree)?;
    propagation.attach(tree, found)
}

fn mask(found: OwnedFd, null: &NullDevice, label: Option<&str>, propagation: &mut PropagationGuard) -> io::Result<()> {
    let directory = FileType::from_raw_mode(fstat(&found)?.st_mode) == FileType::Directory;
    let over = if directory { empty(label)? } else { nothing(null)? };
    propagation.attach(over, found)
}

/// The null device, which cannot be changed through this mount.
fn nothing(null: &NullDevice) -> io::Result<OwnedFd> {
    let over = copy(&null.0, OpenTreeFlags::empty())?;
    let attributes = Attributes { set: RDONLY | NOSUID | NOEXEC, clear: 0, propagation: PRIVATE };
    set_attributes(&over, attributes, Reach::Top)?;
    Ok(over)
}

fn copy(what: impl AsFd, more: OpenTreeFlags) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(what, "", flags | more)?)
}

/// Returns a directory that stays empty.
fn empty(label: Option<&str>) -> io::Result<OwnedFd> {
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&fs, "ro")?;
    if let Some(label) = label {
        fsconfig_set_string(&fs, "context", label)?;
    }
    fsconfig_create(&fs)?;
    let flags = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}
