//! The settings as they stand in a file: every key optional, none unknown.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Origin;

/// All keys of `runtime-config/crisp.toml`; the `Default`s here and the values there are the same, as a test proves.
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
    pub stop: RawStop,
    pub image: RawImage,
    pub metrics: RawMetrics,
    pub registries: BTreeMap<String, RawRegistry>,
    /// Where all of it came from: no setting.
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
    pub shm_size: u64,
    pub exec_output_max: u64,
    pub oom_score_adj: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawResources {
    pub mismatch: String,
    pub annotation: String,
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

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawMetrics {
    pub listen: String,
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
            stop: RawStop::default(),
            image: RawImage::default(),
            metrics: RawMetrics::default(),
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
        Self { driver: "cgroupfs".into(), parent: String::new() }
    }
}

impl Default for RawContainer {
    fn default() -> Self {
        Self {
            log_line_max: 16 << 10,
            shm_size: 64 << 20,
            exec_output_max: (16 << 20) - (64 << 10),
            oom_score_adj: "restrict".into(),
        }
    }
}

impl Default for RawResources {
    fn default() -> Self {
        Self { mismatch: "warn".into(), annotation: String::new() }
    }
}

impl Default for RawStop {
    fn default() -> Self {
        Self { grace_max: 86_400, kill_wait: 10 }
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
