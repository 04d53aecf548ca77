//! The device nodes of a container, and what its processes may do with device nodes.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use cgroup::{Access, DeviceKind, DeviceRule, Verdict, allow_all, default_rules};
use model::{Classed, ContainerSpec, Kind};
use oci_spec::OciSpecError;
use oci_spec::runtime::{LinuxDevice, LinuxDeviceBuilder, LinuxDeviceType};

#[derive(Debug, thiserror::Error)]
pub(crate) enum DevicesError {
    #[error("config.devices: {path}")]
    Host { path: PathBuf, source: io::Error },
    #[error("config.devices: {0} is not a device")]
    NotADevice(PathBuf),
    #[error("config.devices: permissions {0:?} are not of r, w and m")]
    Permissions(String),
    #[error("config.devices: the container path {0:?} is not absolute")]
    ContainerPath(String),
    #[error("describing a device")]
    Build(#[from] OciSpecError),
}

impl Classed for DevicesError {
    fn kind(&self) -> Kind {
        match self {
            Self::Host { .. } | Self::NotADevice(_) | Self::Permissions(_) | Self::ContainerPath(_) => Kind::Invalid,
            Self::Build(_) => Kind::Internal,
        }
    }
}

/// Nodes to make, and rules to put in force.
#[derive(Debug)]
pub(super) struct Devices {
    pub(super) nodes: Vec<LinuxDevice>,
    pub(super) rules: Vec<DeviceRule>,
}

pub(super) fn of(spec: &ContainerSpec) -> Result<Devices, DevicesError> {
    if spec.security.privileged {
        return Ok(Devices { nodes: all_of_host(Path::new("/dev"))?, rules: allow_all() });
    }
    let mut devices = Devices { nodes: Vec::new(), rules: default_rules() };
    for asked in &spec.devices {
        if !asked.container_path.starts_with('/') {
            return Err(DevicesError::ContainerPath(asked.container_path.clone()));
        }
        let access = Access::parse(&asked.permissions)
            .ok_or_else(|| DevicesError::Permissions(asked.permissions.clone()))?;
        let host = &asked.host_path;
        let real = host.canonicalize().map_err(|source| DevicesError::Host { path: host.clone(), source })?;
        let node = describe(&real, Path::new(&asked.container_path))?;
        let node = node.ok_or_else(|| DevicesError::NotADevice(host.clone()))?;
        let kind = if node.typ() == LinuxDeviceType::B { DeviceKind::Block } else { DeviceKind::Char };
        let number = |n: i64| u32::try_from(n).ok();
        let (major, minor) = (number(node.major()), number(node.minor()));
        devices.rules.push(DeviceRule { verdict: Verdict::Allow, kind, major, minor, access });
        devices.nodes.push(node);
    }
    Ok(devices)
}

/// The node at `host` as it shall be at `inside`; none when it is no device.
fn describe(host: &Path, inside: &Path) -> Result<Option<LinuxDevice>, DevicesError> {
    let found = std::fs::symlink_metadata(host);
    let meta = found.map_err(|source| DevicesError::Host { path: host.to_owned(), source })?;
    let kind = if meta.file_type().is_char_device() {
        LinuxDeviceType::C
    } else if meta.file_type().is_block_device() {
        LinuxDeviceType::B
    } else {
        return Ok(None);
    };
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let node = LinuxDeviceBuilder::default()
        .path(inside)
        .typ(kind)
        .major(i64::from(major))
        .minor(i64::from(minor))
        .file_mode(meta.mode() & 0o777)
        .uid(meta.uid())
        .gid(meta.gid())
        .build()?;
    Ok(Some(node))
}

/// All device nodes of the host, for a privileged container, but for those that each container has of its own.
fn all_of_host(dir: &Path) -> Result<Vec<LinuxDevice>, DevicesError> {
    const OWN: [&str; 12] =
        ["pts", "shm", "fd", "mqueue", "console", "ptmx", "null", "zero", "full", "random", "urandom", "tty"];
    let failed = |source| DevicesError::Host { path: dir.to_owned(), source };
    let mut nodes = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let top = dir == Path::new("/dev");
        if top && entry.file_name().to_str().is_some_and(|name| OWN.contains(&name)) {
            continue;
        }
        // A node may go while the directory is read: then it is not there.
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            nodes.extend(all_of_host(&path)?);
        } else if let Ok(Some(node)) = describe(&path, &path) {
            nodes.push(node);
        }
    }
    Ok(nodes)
}
