//! Combines the edits of all CDI devices of a container.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use cgroup::Access;
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Hook, HookBuilder, Hooks, LinuxDevice, LinuxDeviceBuilder, LinuxDeviceType, Mount, MountBuilder,
};
use serde::{Deserialize, Serialize};

use super::CdiError;
use super::spec::{self, ContainerEdits, HookStage, MountKind, Node, NodeKind};

/// Changes to a container, in the order in which they are applied.
#[derive(Debug, Default)]
pub struct Edits {
    /// `NAME=value`; a later entry overrides an earlier one of the same name.
    pub(crate) env: Vec<String>,
    /// A later node overrides an earlier one at the same path.
    pub nodes: Vec<NewNode>,
    /// A later mount overrides an earlier one at the same path.
    pub(crate) mounts: Vec<Mount>,
    pub(crate) hooks: Option<Hooks>,
    /// Supplementary groups of its processes.
    pub groups: Vec<u32>,
    pub used: Vec<InjectedDevice>,
}

/// A device node with its cgroup access rule.
#[derive(Debug)]
pub struct NewNode {
    pub node: LinuxDevice,
    /// `None`: no access, or no rule is needed.
    pub access: Option<Access>,
}

/// A CDI device of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InjectedDevice {
    pub(crate) name: String,
    /// The spec file at the time of creation.
    pub(crate) spec: PathBuf,
}

/// The owner of device nodes for which the spec sets none.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Edits {
    /// Adds `part`. Errors about missing host files name `device`.
    pub(super) fn add(&mut self, device: &str, part: &ContainerEdits, owner: Owner) -> Result<(), CdiError> {
        let ContainerEdits { env, nodes, mounts, hooks, groups, beyond } = part;
        if let Some(what) = beyond {
            return Err(CdiError::Beyond { device: device.to_owned(), what: what.clone() });
        }
        self.env.extend(env.iter().cloned());
        for node in nodes {
            self.nodes.push(new_node(device, node, owner)?);
        }
        for mount in mounts {
            self.mounts.push(new_mount(device, mount)?);
        }
        for hook in hooks {
            self.add_hook(device, hook)?;
        }
        self.groups.extend(groups);
        Ok(())
    }

    pub(super) fn note(&mut self, name: &str, files: &[PathBuf]) {
        let spec = files.first().cloned().unwrap_or_default();
        self.used.push(InjectedDevice { name: name.to_owned(), spec });
    }

    fn add_hook(&mut self, device: &str, hook: &spec::Hook) -> Result<(), CdiError> {
        // A startContainer hook is a file of the container, whose root is not mounted yet.
        if hook.moment != HookStage::StartContainer {
            runnable(&hook.path).map_err(|source| CdiError::Hook {
                device: device.to_owned(),
                path: hook.path.clone(),
                source,
            })?;
        }
        let built = new_hook(hook)?;
        let hooks = self.hooks.get_or_insert_default();
        let list = match hook.moment {
            #[allow(deprecated, reason = "specs may still contain it")]
            HookStage::Prestart => hooks.prestart_mut(),
            HookStage::CreateRuntime => hooks.create_runtime_mut(),
            HookStage::CreateContainer => hooks.create_container_mut(),
            HookStage::StartContainer => hooks.start_container_mut(),
            HookStage::Poststart => hooks.poststart_mut(),
            HookStage::Poststop => hooks.poststop_mut(),
        };
        list.get_or_insert_default().push(built);
        Ok(())
    }
}

fn new_hook(hook: &spec::Hook) -> Result<Hook, OciSpecError> {
    let spec::Hook { moment: _, path, args, env, timeout } = hook;
    let mut built = HookBuilder::default().path(path).build()?;
    built.set_args((!args.is_empty()).then(|| args.clone()));
    built.set_env((!env.is_empty()).then(|| env.clone()));
    built.set_timeout(*timeout);
    Ok(built)
}

fn runnable(path: &Path) -> io::Result<()> {
    let meta = std::fs::metadata(path)?;
    if meta.is_file() && meta.mode() & 0o111 != 0 { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn new_mount(device: &str, mount: &spec::Mount) -> Result<Mount, CdiError> {
    const PROPAGATIONS: [&str; 6] = ["private", "rprivate", "slave", "rslave", "shared", "rshared"];
    let spec::Mount { source, target, kind, options } = mount;
    let mut options = options.clone();
    let kind = match kind {
        MountKind::Bind => {
            std::fs::metadata(source).map_err(|error| CdiError::Source {
                device: device.to_owned(),
                path: source.clone(),
                source: error,
            })?;
            // The default propagation of OCI.
            if !options.iter().any(|option| PROPAGATIONS.contains(&option.as_str())) {
                options.push("rprivate".to_owned());
            }
            "bind"
        }
        MountKind::Tmpfs => "tmpfs",
    };
    Ok(MountBuilder::default().source(source).destination(target).typ(kind).options(options).build()?)
}

/// Returns a node for the container. Fields that the spec does not set are read from the host's node.
fn new_node(device: &str, node: &Node, owner: Owner) -> Result<NewNode, CdiError> {
    let Node { path, host, kind, numbers, mode, uid, gid, access } = node;
    let described = *kind == Some(NodeKind::Fifo) || (kind.is_some() && numbers.is_some());
    let on_host = match std::fs::metadata(host) {
        Ok(meta) => Some(meta),
        Err(_) if described => None,
        Err(source) => return Err(CdiError::Node { device: device.to_owned(), path: host.clone(), source }),
    };
    let there = on_host.as_ref().and_then(kind_of);
    let mismatch = || CdiError::NodeKind { device: device.to_owned(), path: host.clone() };
    let kind = match (kind, there) {
        (Some(kind), _) if described => *kind,
        (Some(kind), Some(there)) if *kind == there => there,
        (None, Some(there)) => there,
        (Some(_), _) | (None, None) => return Err(mismatch()),
    };
    let device_number = on_host.as_ref().map_or(0, Metadata::rdev);
    let (major, minor) = match numbers {
        _ if kind == NodeKind::Fifo => (0, 0),
        Some(numbers) => *numbers,
        None => (rustix::fs::major(device_number), rustix::fs::minor(device_number)),
    };
    let mode = mode.or_else(|| on_host.as_ref().map(|meta| meta.mode() & 0o7777)).unwrap_or(0o666);
    let built = LinuxDeviceBuilder::default()
        .path(path)
        .typ(match kind {
            NodeKind::Block => LinuxDeviceType::B,
            NodeKind::Char => LinuxDeviceType::C,
            NodeKind::Fifo => LinuxDeviceType::P,
        })
        .major(i64::from(major))
        .minor(i64::from(minor))
        .file_mode(mode)
        .uid(uid.unwrap_or(owner.uid))
        .gid(gid.unwrap_or(owner.gid))
        .build()?;
    Ok(NewNode { node: built, access: access.filter(|_| kind != NodeKind::Fifo) })
}

fn kind_of(meta: &Metadata) -> Option<NodeKind> {
    let kind = meta.file_type();
    if kind.is_block_device() {
        Some(NodeKind::Block)
    } else if kind.is_char_device() {
        Some(NodeKind::Char)
    } else if kind.is_fifo() {
        Some(NodeKind::Fifo)
    } else {
        None
    }
}
