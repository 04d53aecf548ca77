//! The settings as a file has them: every key is optional, unknown keys are rejected.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Origin;

/// Enough for ordinary programs that start as root.
const CAPABILITIES: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// All keys of `runtime-config/crisp.toml`. A test checks that the `Default`s here are equal to the
/// values there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawConfig {
    pub listen: PathBuf,
    pub socket_mode: String,
    pub socket_group: String,
    pub root: PathBuf,
    pub state: PathBuf,
    pub log: RawLog,
    pub cgroup: RawCgroup,
    pub shim: RawShim,
    pub container: RawContainer,
    pub resources: RawResources,
    pub cdi: RawCdi,
    pub stop: RawStop,
    pub network: RawNetwork,
    pub image: RawImage,
    pub stream: RawStream,
    pub metrics: RawMetrics,
    pub tracing: RawTracing,
    pub handlers: BTreeMap<String, RawHandler>,
    pub registries: BTreeMap<String, RawRegistry>,
    /// The source of the settings; not a setting itself.
    #[serde(skip)]
    pub origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawLog {
    pub level: String,
    pub format: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawCgroup {
    pub driver: String,
    pub parent: String,
    pub favordynmods: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawShim {
    pub path: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawContainer {
    pub log_line_max: u32,
    pub log_rate_max: u64,
    pub shm_size: u64,
    pub exec_output_max: u64,
    pub exec_output_total: u64,
    pub oom_score_adj: String,
    pub privileged: bool,
    pub seccomp: PathBuf,
    pub apparmor: String,
    pub selinux: String,
    pub capabilities: Vec<String>,
    pub rlimits: BTreeMap<String, String>,
    pub resize_notices: Vec<String>,
    pub resize_hook: Vec<String>,
}

/// The settings that a handler may override; a missing one has the value of [`RawContainer`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawHandler {
    pub log_line_max: Option<u32>,
    pub log_rate_max: Option<u64>,
    pub shm_size: Option<u64>,
    pub oom_score_adj: Option<String>,
    pub privileged: Option<bool>,
    pub seccomp: Option<PathBuf>,
    pub apparmor: Option<String>,
    pub selinux: Option<String>,
    pub capabilities: Option<Vec<String>>,
    pub rlimits: Option<BTreeMap<String, String>>,
    pub resize_notices: Option<Vec<String>>,
    pub resize_hook: Option<Vec<String>>,
}

impl RawHandler {
    pub(super) fn over(self, all: RawContainer) -> RawContainer {
        let Self {
            log_line_max,
            log_rate_max,
            shm_size,
            oom_score_adj,
            privileged,
            seccomp,
            apparmor,
            selinux,
            capabilities,
            rlimits,
            resize_notices,
            resize_hook,
        } = self;
        RawContainer {
            log_line_max: log_line_max.unwrap_or(all.log_line_max),
            log_rate_max: log_rate_max.unwrap_or(all.log_rate_max),
            shm_size: shm_size.unwrap_or(all.shm_size),
            exec_output_max: all.exec_output_max,
            exec_output_total: all.exec_output_total,
            oom_score_adj: oom_score_adj.unwrap_or(all.oom_score_adj),
            privileged: privileged.unwrap_or(all.privileged),
            seccomp: seccomp.unwrap_or(all.seccomp),
            apparmor: apparmor.unwrap_or(all.apparmor),
            selinux: selinux.unwrap_or(all.selinux),
            capabilities: capabilities.unwrap_or(all.capabilities),
            rlimits: rlimits.unwrap_or(all.rlimits),
            resize_notices: resize_notices.unwrap_or(all.resize_notices),
            resize_hook: resize_hook.unwrap_or(all.resize_hook),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawResources {
    pub mismatch: String,
    pub annotation: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawCdi {
    pub spec_dirs: Vec<PathBuf>,
    pub annotations: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawStop {
    pub grace_max: u64,
    pub kill_wait: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawImage {
    pub pinned: Vec<String>,
    pub search: Vec<String>,
    pub credentials: PathBuf,
    pub downloads: usize,
    pub pull_memory: u64,
    pub stall_timeout: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawNetwork {
    pub mode: String,
    pub cni: RawCni,
    pub bridge: RawBridge,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawCni {
    pub conf_dir: PathBuf,
    pub bin_dirs: Vec<PathBuf>,
    pub timeout: u64,
    pub template: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawBridge {
    pub name: String,
    pub pools: Vec<String>,
    pub mtu: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawStream {
    pub listen: String,
    pub cert: PathBuf,
    pub key: PathBuf,
    pub idle_timeout: u64,
    pub creation_timeout: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawMetrics {
    pub listen: String,
    pub tls_cert: PathBuf,
    pub tls_key: PathBuf,
    pub token_file: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawTracing {
    pub endpoint: String,
    pub sampling_per_million: u32,
    pub service_name: String,
    pub timeout: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawRegistry {
    pub mirrors: Vec<String>,
    pub mirrors_only: bool,
    pub plain_http: bool,
    pub ca: PathBuf,
    pub client_cert: PathBuf,
    pub client_key: PathBuf,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            listen: "/run/crisp/crisp.sock".into(),
            socket_mode: "0600".into(),
            socket_group: String::new(),
            root: "/var/lib/crisp".into(),
            state: "/run/crisp".into(),
            log: RawLog::default(),
            cgroup: RawCgroup::default(),
            shim: RawShim::default(),
            container: RawContainer::default(),
            resources: RawResources::default(),
            cdi: RawCdi::default(),
            stop: RawStop::default(),
            network: RawNetwork::default(),
            image: RawImage::default(),
            stream: RawStream::default(),
            metrics: RawMetrics::default(),
            tracing: RawTracing::default(),
            handlers: BTreeMap::new(),
            registries: BTreeMap::new(),
            origin: Origin::default(),
        }
    }
}

impl Default for RawLog {
    fn default() -> Self {
        Self { level: "info".into(), format: "text".into() }
    }
}

impl Default for RawCgroup {
    fn default() -> Self {
        Self { driver: "cgroupfs".into(), parent: String::new(), favordynmods: "auto".into() }
    }
}

impl Default for RawContainer {
    fn default() -> Self {
        Self {
            log_line_max: 16 << 10,
            log_rate_max: 16 << 20,
            shm_size: 64 << 20,
            exec_output_max: (16 << 20) - (64 << 10),
            exec_output_total: 64 << 20,
            oom_score_adj: "restrict".into(),
            privileged: true,
            seccomp: PathBuf::new(),
            apparmor: String::new(),
            selinux: "auto".into(),
            capabilities: CAPABILITIES.map(str::to_owned).into(),
            rlimits: BTreeMap::new(),
            resize_notices: Vec::new(),
            resize_hook: Vec::new(),
        }
    }
}

impl Default for RawResources {
    fn default() -> Self {
        Self { mismatch: "warn".into(), annotation: String::new() }
    }
}

impl Default for RawCdi {
    fn default() -> Self {
        Self { spec_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()], annotations: false }
    }
}

impl Default for RawStop {
    fn default() -> Self {
        Self { grace_max: 86_400, kill_wait: 10 }
    }
}

impl Default for RawNetwork {
    fn default() -> Self {
        Self { mode: "auto".into(), cni: RawCni::default(), bridge: RawBridge::default() }
    }
}

impl Default for RawCni {
    fn default() -> Self {
        Self {
            conf_dir: "/etc/cni/net.d".into(),
            bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            timeout: 60,
            template: PathBuf::new(),
        }
    }
}

impl Default for RawBridge {
    fn default() -> Self {
        Self { name: "crisp0".into(), pools: vec!["10.213.0.0/16".into()], mtu: 0 }
    }
}

impl Default for RawImage {
    fn default() -> Self {
        Self {
            pinned: Vec::new(),
            search: vec!["docker.io".into()],
            credentials: PathBuf::new(),
            downloads: 3,
            pull_memory: 128 << 20,
            stall_timeout: 60,
        }
    }
}

impl Default for RawStream {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".into(),
            cert: PathBuf::new(),
            key: PathBuf::new(),
            idle_timeout: 14_400,
            creation_timeout: 30,
        }
    }
}

impl Default for RawTracing {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            sampling_per_million: super::tracing::SAMPLE_ALL,
            service_name: "crisp".into(),
            timeout: 10,
        }
    }
}
