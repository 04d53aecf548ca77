//! The fields of the daemon's verbose status answers that the commands read.

use std::collections::BTreeMap;

use model::pod_resources::{PodResourceConfig, Resources};
use model::resources::{LimitsPatch, ObservedLimits};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Requested, applied and actual limits; see `daemon/runtime/verbose_info.rs`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct VerboseInfo {
    pub(super) asked: LimitsPatch,
    /// Applied values, by file.
    pub(super) applied: BTreeMap<String, String>,
    /// None if the cgroup no longer exists.
    pub(super) actual: Option<ObservedLimits>,
    pub(super) drift: Vec<Drifted>,
    /// For pods only.
    #[serde(default)]
    pub(super) overhead: Option<LimitsPatch>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Drifted {
    pub(super) file: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct ContainerInfo {
    pub(super) pid: Option<u32>,
    pub(super) pod: String,
    pub(super) cgroup: String,
    pub(super) resources: VerboseInfo,
    pub(super) config: RequestedContainer,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct RequestedContainer {
    #[serde(default)]
    pub(super) kubernetes_resources: Option<Resources>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct PodInfo {
    pub(super) cgroup: PodCgroup,
    pub(super) resources: VerboseInfo,
    pub(super) config: RequestedPod,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct PodCgroup {
    pub(super) path: String,
    /// Whether crisp created the cgroup, and so may change it.
    pub(super) ours: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct RequestedPod {
    #[serde(default)]
    pub(super) pod_resources: Option<PodResourceConfig>,
}

/// Verbose status of the daemon.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DaemonInfo {
    pub(super) release: String,
    pub(super) root: std::path::PathBuf,
    pub(super) state: std::path::PathBuf,
    pub(super) cgroup_driver: String,
    pub(super) pods: u64,
    pub(super) containers: u64,
}

/// The answer cannot be read as crisp's.
#[derive(Debug, thiserror::Error)]
#[error("the daemon on this socket is not this version of crisp; restart it after an upgrade")]
pub struct NotCrisp(#[source] Option<serde_json::Error>);

/// Parses the entry `info` of a verbose answer.
pub(super) fn read<T: DeserializeOwned>(info: &BTreeMap<String, String>) -> Result<T, NotCrisp> {
    let text = info.get("info").ok_or(NotCrisp(None))?;
    serde_json::from_str(text).map_err(|error| NotCrisp(Some(error)))
}
