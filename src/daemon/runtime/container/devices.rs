//! The device nodes of a container, and its cgroup rules for device nodes.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use cgroup::{Access, DeviceKind, DeviceRule, Verdict, allow_all, default_rules};
use model::{ContainerSpec, ErrorClass, ErrorKind, RequestField};
use oci_spec::OciSpecError;
use oci_spec::runtime::{LinuxDevice, LinuxDeviceBuilder, LinuxDeviceType};

#[derive(Debug, thiserror::Error)]
pub(crate) enum DevicesError {
    #[error("reading the host's device file {path}")]
    Host { path: PathBuf, source: io::Error },
    #[error("{0} on the host is not a device file")]
    NotADevice(PathBuf),
    #[error("invalid device permissions {0:?}: expected a combination of r, w and m")]
    Permissions(String),
    #[error("building the config.json entries of the container's devices")]
    Build(#[from] OciSpecError),
}

impl ErrorClass for DevicesError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Host { .. } | Self::NotADevice(_) | Self::Permissions(_) => ErrorKind::Invalid,
            Self::Build(_) => ErrorKind::Internal,
        }
    }

    fn field(&self) -> Option<RequestField> {
        match self {
            Self::Host { .. } | Self::NotADevice(_) | Self::Permissions(_) => Some(RequestField::Devices),
            Self::Build(_) => None,
        }
    }
}

/// Nodes for the OCI configuration, and cgroup rules.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) nodes: Vec<LinuxDevice>,
    pub(crate) rules: Vec<DeviceRule>,
    /// The rules allow everything.
    privileged: bool,
}

impl Devices {
    /// Adds a node, and removes one at the same path.
    pub(crate) fn add(&mut self, node: LinuxDevice, access: Option<Access>) {
        if let Some(access) = access
            && !self.privileged
        {
            self.rules.push(rule(&node, access));
        }
        self.nodes.retain(|other| other.path() != node.path());
        self.nodes.push(node);
    }
}

/// Returns the devices of a request. `apart`: the container has ids of its own. It may use all
/// devices that it gets, so of the host's devices a privileged one gets those only that every user
/// of the host may use.
pub(crate) fn of(spec: &ContainerSpec, apart: bool) -> Result<Devices, DevicesError> {
    let privileged = spec.security.privileged;
    let mut devices = if privileged {
        Devices { nodes: below(Path::new("/dev"), Path::new("/dev"), &OWN)?, rules: allow_all(), privileged }
    } else {
        Devices { nodes: Vec::new(), rules: default_rules(), privileged }
    };
    if apart {
        devices.nodes.retain(|node| node.file_mode().unwrap_or(0) & 0o006 != 0);
    }
    for asked in &spec.devices {
        let access =
            Access::parse(&asked.permissions).ok_or_else(|| DevicesError::Permissions(asked.permissions.clone()))?;
        for node in found(&asked.host_path, Path::new(&asked.container_path))? {
            devices.add(node, Some(access));
        }
    }
    Ok(devices)
}

fn rule(node: &LinuxDevice, access: Access) -> DeviceRule {
    let kind = if node.typ() == LinuxDeviceType::B { DeviceKind::Block } else { DeviceKind::Char };
    let number = |n: i64| u32::try_from(n).ok();
    DeviceRule { verdict: Verdict::Allow, kind, major: number(node.major()), minor: number(node.minor()), access }
}

/// Returns the device at `host`, or all devices below it if that is a directory.
fn found(host: &Path, inside: &Path) -> Result<Vec<LinuxDevice>, DevicesError> {
    let real = host.canonicalize().map_err(|source| DevicesError::Host { path: host.to_owned(), source })?;
    let nodes = if real.is_dir() { below(&real, inside, &[])? } else { Vec::from_iter(describe(&real, inside)?) };
    if nodes.is_empty() { Err(DevicesError::NotADevice(host.to_owned())) } else { Ok(nodes) }
}

/// Returns the node at `host` as a node at `inside`; `None` if it is not a device.
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

/// The entries of `/dev` that every container has of its own.
const OWN: [&str; 12] =
    ["pts", "shm", "fd", "mqueue", "console", "ptmx", "null", "zero", "full", "random", "urandom", "tty"];

/// Returns all device nodes below `dir`, with paths below `inside`, except the entries of `dir` in
/// `without`.
fn below(dir: &Path, inside: &Path, without: &[&str]) -> Result<Vec<LinuxDevice>, DevicesError> {
    let failed = |source| DevicesError::Host { path: dir.to_owned(), source };
    let mut nodes = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| without.contains(&name)) {
            continue;
        }
        let (path, inside) = (entry.path(), inside.join(&name));
        // A node may be removed while the directory is read.
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            nodes.extend(below(&path, &inside, &[])?);
        } else if let Ok(Some(node)) = describe(&path, &inside) {
            nodes.push(node);
        }
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_path_or_in_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.path().join("link")).unwrap();
        let node = found(&dir.path().join("link"), Path::new("/dev/nothing")).unwrap();
        assert_eq!((node.len(), node[0].path().as_path()), (1, Path::new("/dev/nothing")));
        assert!(matches!(found(dir.path(), Path::new("/dev/x")), Err(DevicesError::NotADevice(_))), "links only");
        let all = found(Path::new("/dev"), Path::new("/dev/host")).unwrap();
        assert!(all.iter().any(|node| node.path() == Path::new("/dev/host/null")));
    }
}
