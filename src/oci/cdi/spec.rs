//! A CDI spec after its check: the devices of one file, and their edits of containers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cgroup::Access;

/// The devices of one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spec {
    /// `vendor.com/class`.
    pub(super) kind: String,
    /// Applied once to each container with any of the devices.
    pub(super) edits: ContainerEdits,
    pub(super) devices: BTreeMap<String, ContainerEdits>,
}

/// The changes of a device, or of a whole spec, to a container.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerEdits {
    /// `NAME=value`.
    pub(super) env: Vec<String>,
    pub(super) nodes: Vec<Node>,
    pub(super) mounts: Vec<Mount>,
    pub(super) hooks: Vec<Hook>,
    pub(super) groups: Vec<u32>,
    /// A feature of it that crisp does not support. Such a device is rejected as a whole.
    pub(super) beyond: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// The path in the container.
    pub(super) path: PathBuf,
    pub(super) host: PathBuf,
    pub(super) kind: Option<NodeKind>,
    /// Major and minor; `None`: those of the host's node.
    pub(super) numbers: Option<(u32, u32)>,
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    /// `None`: the node is created, but the kernel denies open(2).
    pub(super) access: Option<Access>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeKind {
    Block,
    Char,
    Fifo,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) source: PathBuf,
    pub(super) target: PathBuf,
    pub(super) kind: MountKind,
    pub(super) options: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MountKind {
    Bind,
    Tmpfs,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hook {
    pub(super) moment: HookStage,
    pub(super) path: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<String>,
    /// In seconds.
    pub(super) timeout: Option<i64>,
}

/// The stage at which a hook runs, as named by OCI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HookStage {
    Prestart,
    CreateRuntime,
    CreateContainer,
    StartContainer,
    Poststart,
    Poststop,
}

impl HookStage {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "prestart" => Self::Prestart,
            "createRuntime" => Self::CreateRuntime,
            "createContainer" => Self::CreateContainer,
            "startContainer" => Self::StartContainer,
            "poststart" => Self::Poststart,
            "poststop" => Self::Poststop,
            _ => return None,
        })
    }
}
