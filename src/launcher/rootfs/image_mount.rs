//! Mounts that show an image: all its layers as one, or a file or directory among them, never to be written.
//!
//! Made in the launcher's own mount namespace, so none of it is ever seen on the host, and taken from there as detached
//! mounts for [`crate::stage`] to put in their places. Each container has an overlay of its own, also for an image of
//! one layer: with the layer itself, two containers would share its FIFOs, sockets and file locks.

use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use model::LayerNumber;
use oci_spec::runtime::Mount;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, OpenTreeFlags, UnmountFlags, mount, open_tree, unmount};
use shim_protocol::LaunchConfig;

use crate::process::lsm_label;
use crate::rootfs::idmap::IdMaps;
use crate::rootfs::lowerdirs;
use crate::rootfs::mount_options::MountOptions;
use crate::rootfs::mounts::{IMAGE, MountError, PreparedMount};

/// Opens the images among `mounts`. `spare` is an empty directory, which is mounted over meanwhile.
pub(crate) fn prepare(
    mounts: &[Mount],
    launch: &LaunchConfig,
    label: Option<&str>,
    spare: &Path,
    ids: &mut IdMaps,
) -> Result<Vec<PreparedMount>, MountError> {
    let images = mounts.iter().enumerate().filter(|(_, mount)| mount.typ().as_deref() == Some(IMAGE));
    images.map(|(turn, mount)| prepare_one(turn, mount, launch, label, spare, ids)).collect()
}

fn prepare_one(
    turn: usize,
    mount: &Mount,
    launch: &LaunchConfig,
    label: Option<&str>,
    spare: &Path,
    ids: &mut IdMaps,
) -> Result<PreparedMount, MountError> {
    let target = mount.destination().clone();
    let from = mount.source().clone().unwrap_or_default();
    let failed = |source| MountError::Source { target: target.clone(), from: from.clone(), source };
    // The source is an image's id, and perhaps a path in it.
    let mut parts = from.components();
    let id = parts.next().and_then(|id| id.as_os_str().to_str()).unwrap_or_default();
    let layers = launch.images.get(id).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let ids = ids.of_mount(mount).map_err(failed)?;
    let (tree, directory) = show(&launch.rootfs.layers, layers, label, parts.as_path(), spare, ids).map_err(failed)?;
    let options = mount.options().as_deref().unwrap_or_default();
    let options =
        MountOptions::read(options, false).map_err(|source| MountError::Option { target: target.clone(), source })?;
    options.apply(&tree).map_err(failed)?;
    Ok(PreparedMount::tree(turn, target, tree, directory))
}

/// What the layers have at `path`, as a detached mount, and whether that is a directory.
fn show(
    above: &Path,
    layers: &[LayerNumber],
    label: Option<&str>,
    path: &Path,
    spare: &Path,
    ids: Option<BorrowedFd<'_>>,
) -> io::Result<(OwnedFd, bool)> {
    let empty = open(spare)?;
    let entered = lowerdirs::enter(above, ids, spare)?;
    let mut options = format!("lowerdir={}", LayerNumber::lowerdir(layers));
    if layers.len() == 1 {
        // Without an upper layer an overlay has two lower ones at least.
        write!(options, ":/proc/self/fd/{}", empty.as_raw_fd()).map_err(io::Error::other)?;
    }
    options.push_str(&lsm_label::mount_data(label));
    let options = std::ffi::CString::new(options)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    mount("overlay", spare, "overlay", flags, Some(options.as_c_str()))?;
    let taken = take(spare, path);
    unmount(spare, UnmountFlags::DETACH)?;
    entered.leave()?;
    taken
}

fn take(root: &Path, path: &Path) -> io::Result<(OwnedFd, bool)> {
    let root = open(root)?;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let found = loop {
        match openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how) {
            // Something was renamed meanwhile, anywhere.
            Err(Errno::AGAIN | Errno::INTR) => {}
            found => break found?,
        }
    };
    let directory = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) == FileType::Directory;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok((open_tree(&found, "", flags)?, directory))
}

fn open(directory: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}
