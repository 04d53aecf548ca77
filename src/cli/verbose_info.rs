//! What crisp tells of a pod or container beyond CRI, as far as the operator's verbs read it.

use std::collections::BTreeMap;

use model::pod_resources::{PodResourceConfig, Resources};
use model::resources::{LimitsPatch, ObservedLimits};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Asked, applied and actual; see `daemon/runtime/verbose_info.rs`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct VerboseInfo {
    pub(super) asked: LimitsPatch,
    /// What was written, by file.
    pub(super) applied: BTreeMap<String, String>,
    /// None where there is no cgroup any more.
    pub(super) actual: Option<ObservedLimits>,
    pub(super) drift: Vec<Drifted>,
    /// Of pods alone.
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
    /// Whether crisp made it, and so may change it.
    pub(super) ours: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct RequestedPod {
    #[serde(default)]
    pub(super) pod_resources: Option<PodResourceConfig>,
}

/// Of the daemon itself.
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

/// The answer is not crisp's.
#[derive(Debug, thiserror::Error)]
#[error("what listens on the socket is no crisp of this release")]
pub struct NotCrisp(#[source] Option<serde_json::Error>);

/// Reads the one entry that crisp's verbose answers have.
pub(super) fn read<T: DeserializeOwned>(info: &BTreeMap<String, String>) -> Result<T, NotCrisp> {
    let text = info.get("info").ok_or(NotCrisp(None))?;
    serde_json::from_str(text).map_err(|error| NotCrisp(Some(error)))
}
