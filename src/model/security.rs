//! Security settings of pods and containers: users, namespaces, capabilities and profiles.

use serde::{Deserialize, Serialize};

use crate::container::IdMapping;

/// The scope of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NsMode {
    /// One for the pod.
    Pod,
    /// One for each container.
    Container,
    /// The host's namespace.
    Node,
    /// The namespace of another container of the pod.
    Target,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    pub network: NsMode,
    pub pid: NsMode,
    pub ipc: NsMode,
    /// The container for [`NsMode::Target`].
    pub target: Option<String>,
    /// `None`: the host's user namespace.
    pub user: Option<UserNs>,
}

/// The mappings of a pod's own user namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserNs {
    pub uids: Vec<IdMapping>,
    pub gids: Vec<IdMapping>,
}

/// The user of the container's process, if the request overrides that of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserRef {
    Id(u32),
    Name(String),
}

/// Whether groups of the image's `/etc/group` are added to the requested groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupsPolicy {
    Merge,
    Strict,
}

/// A seccomp or AppArmor profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Profile {
    RuntimeDefault,
    Unconfined,
    Localhost(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeLinux {
    pub user: String,
    pub role: String,
    pub kind: String,
    pub level: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSecurity {
    pub namespaces: Namespaces,
    pub selinux: Option<SeLinux>,
    pub run_as_user: Option<u32>,
    pub run_as_group: Option<u32>,
    pub supplemental_groups: Vec<u32>,
    pub groups_policy: GroupsPolicy,
    pub readonly_rootfs: bool,
    pub privileged: bool,
    pub seccomp: Option<Profile>,
    pub apparmor: Option<Profile>,
}

/// All capabilities of Linux without `CAP_`; the index of each is its number.
pub const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// Capabilities as CRI names them: without `CAP_`, `ALL` for all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    pub add: Vec<String>,
    pub drop: Vec<String>,
    pub add_ambient: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSecurity {
    pub capabilities: Capabilities,
    pub privileged: bool,
    pub namespaces: Namespaces,
    pub selinux: Option<SeLinux>,
    pub run_as: Option<UserRef>,
    pub run_as_group: Option<u32>,
    pub supplemental_groups: Vec<u32>,
    pub groups_policy: GroupsPolicy,
    pub readonly_rootfs: bool,
    pub no_new_privs: bool,
    pub masked_paths: Vec<String>,
    pub readonly_paths: Vec<String>,
    pub seccomp: Option<Profile>,
    pub apparmor: Option<Profile>,
}
