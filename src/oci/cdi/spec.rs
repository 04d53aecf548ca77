//! A spec that was checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cgroup::Access;

/// The devices of one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spec {
    /// `vendor.com/class`.
    pub(super) kind: String,
    /// For each container that is given any of the devices, once.
    pub(super) edits: ContainerEdits,
    pub(super) devices: BTreeMap<String, ContainerEdits>,
}

/// What a device, or a whole spec, changes in a container.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerEdits {
    /// `NAME=value`.
    pub(super) env: Vec<String>,
    pub(super) nodes: Vec<Node>,
    pub(super) mounts: Vec<Mount>,
    pub(super) hooks: Vec<Hook>,
    pub(super) groups: Vec<u32>,
    /// What it asks for beside that, and crisp cannot do. Nobody gets a device of which only a part works.
    pub(super) beyond: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// In the container.
    pub(super) path: PathBuf,
    pub(super) host: PathBuf,
    pub(super) kind: Option<NodeKind>,
    /// Major and minor; none: the host's.
    pub(super) numbers: Option<(u32, u32)>,
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    /// None: the node is there and the kernel refuses to open it.
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

/// When a hook runs, in the standard's words.
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
