//! The device nodes of a container in a user namespace, which cannot create any.
//!
//! The launcher creates them on the host, in a file system that is then detached, and mounts each
//! at its path. Unlike a mounted node of the host, such a node has the requested mode and owner.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use model::UserNs;
use oci_spec::runtime::{LinuxDevice, LinuxDeviceType};
use rustix::fs::{AtFlags, CWD, Dev, FileType, Gid, Mode, Uid, chmodat, chownat, makedev, mknodat};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use sys::mount::{Reach, detach_copy};

use crate::process::lsm_label;
use crate::rootfs::mounts::PreparedMount;

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("creating the container's device nodes: {0}")]
    Place(io::Error),
    #[error("creating the container's device {path}: {source}")]
    Node { path: PathBuf, source: io::Error },
    #[error("device {0} of the container: not a valid type and number of a device")]
    Kind(PathBuf),
}

/// Creates the nodes, with owners mapped by `ids`. `spare` is an empty directory, which is mounted
/// over temporarily. The nodes are attached before all other mounts.
pub(crate) fn prepare(
    devices: &[LinuxDevice],
    ids: &UserNs,
    label: Option<&str>,
    spare: &Path,
) -> Result<Vec<PreparedMount>, NodeError> {
    if devices.is_empty() {
        return Ok(Vec::new());
    }
    let place = |errno: rustix::io::Errno| NodeError::Place(errno.into());
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    let data = CString::new(format!("mode=711{}", lsm_label::mount_data(label)));
    let data = data.map_err(|nul| NodeError::Place(nul.into()))?;
    mount("devices", spare, "tmpfs", flags, Some(data.as_c_str())).map_err(place)?;
    let nodes = devices.iter().enumerate().map(|(number, device)| {
        let file = spare.join(number.to_string());
        let failed = |source| NodeError::Node { path: device.path().clone(), source };
        let (kind, number) = identity(device).ok_or_else(|| NodeError::Kind(device.path().clone()))?;
        create(&file, kind, number, device, ids).map_err(|errno| failed(errno.into()))?;
        let tree = detach_copy(&file, Reach::Top).map_err(failed)?;
        Ok(PreparedMount::tree(0, device.path().clone(), tree, false))
    });
    let nodes = nodes.collect();
    unmount(spare, UnmountFlags::DETACH).map_err(place)?;
    nodes
}

fn identity(device: &LinuxDevice) -> Option<(FileType, Dev)> {
    let kind = match device.typ() {
        LinuxDeviceType::C | LinuxDeviceType::U => FileType::CharacterDevice,
        LinuxDeviceType::B => FileType::BlockDevice,
        LinuxDeviceType::P => return Some((FileType::Fifo, 0)),
        LinuxDeviceType::A => return None,
    };
    let (major, minor) = (u32::try_from(device.major()).ok()?, u32::try_from(device.minor()).ok()?);
    Some((kind, makedev(major, minor)))
}

fn create(file: &Path, kind: FileType, number: Dev, device: &LinuxDevice, ids: &UserNs) -> rustix::io::Result<()> {
    mknodat(CWD, file, kind, Mode::empty(), number)?;
    // An owner without a mapping stays without one.
    let uid = ids.uid(device.uid().unwrap_or(0)).map(Uid::from_raw);
    let gid = ids.gid(device.gid().unwrap_or(0)).map(Gid::from_raw);
    chownat(CWD, file, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    let mode = device.file_mode().unwrap_or(0o666) & 0o777;
    chmodat(CWD, file, Mode::from_raw_mode(mode), AtFlags::empty())
}
