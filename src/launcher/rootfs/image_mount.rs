//! Mounts of images, read-only: all layers merged, or one file or directory of them.
//!
//! Created in the launcher's mount namespace, so never visible on the host, and passed on as
//! detached mounts for [`crate::rootfs::mounts`] to attach. Each container has an overlay of its
//! own, also for an image with one layer: two containers that mount the layer itself would share
//! its FIFOs, sockets and file locks.

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

/// Mounts images in the container.
pub(crate) struct ImageMounts<'a> {
    pub(crate) launch: &'a LaunchConfig,
    /// The SELinux label of the mounts.
    pub(crate) label: Option<&'a str>,
    /// An empty directory, which is mounted over temporarily.
    pub(crate) spare: &'a Path,
    pub(crate) ids: &'a mut IdMaps,
}

/// The files of an image that a mount shows.
struct ImageSource<'a> {
    layers: &'a [LayerNumber],
    /// The path in the image.
    path: &'a Path,
    /// A user namespace whose ids the files get.
    ids: Option<BorrowedFd<'a>>,
}

impl ImageMounts<'_> {
    /// Prepares the mounts of images. Runs in the mount namespace of the launcher.
    pub(crate) fn prepare(&mut self, mounts: &[Mount]) -> Result<Vec<PreparedMount>, MountError> {
        let images = mounts.iter().enumerate().filter(|(_, mount)| mount.typ().as_deref() == Some(IMAGE));
        images.map(|(turn, mount)| self.prepare_one(turn, mount)).collect()
    }

    fn prepare_one(&mut self, turn: usize, mount: &Mount) -> Result<PreparedMount, MountError> {
        let target = mount.destination().clone();
        let from = mount.source().clone().unwrap_or_default();
        let failed = |source| MountError::Source { target: target.clone(), from: from.clone(), source };
        // The source is an image's id, and perhaps a path in it.
        let mut parts = from.components();
        let id = parts.next().and_then(|id| id.as_os_str().to_str()).unwrap_or_default();
        let layers = self.launch.images.get(id).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let (above, label, spare) = (&self.launch.rootfs.layers, self.label, self.spare);
        let ids = self.ids.of_mount(mount).map_err(failed)?;
        let source = ImageSource { layers, path: parts.as_path(), ids };
        let (tree, directory) = mount_image(above, source, label, spare).map_err(failed)?;
        let options = mount.options().as_deref().unwrap_or_default();
        let options = MountOptions::read(options, false)
            .map_err(|source| MountError::Option { target: target.clone(), source })?;
        options.apply(&tree).map_err(failed)?;
        Ok(PreparedMount::tree(turn, target, tree, directory))
    }
}

/// Returns a detached mount of the path in the image, and whether that is a directory. `above` is
/// the directory with all layers.
fn mount_image(
    above: &Path,
    source: ImageSource<'_>,
    label: Option<&str>,
    spare: &Path,
) -> io::Result<(OwnedFd, bool)> {
    let ImageSource { layers, path, ids } = source;
    let empty = open(spare)?;
    let entered = lowerdirs::enter(above, ids, spare)?;
    let mut options = format!("lowerdir={}", LayerNumber::lowerdir(layers));
    if layers.len() == 1 {
        // An overlay without an upper layer needs at least two lower ones.
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
            // A file was renamed somewhere on the machine during the lookup.
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
