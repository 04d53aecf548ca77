//! The fields of the daemon's verbose status answers that the commands read.

use std::collections::BTreeMap;

use cgroup::EffectiveLimits;
use model::pod_resources::{PodResourceConfig, Resources};
use model::resources::{LimitsPatch, ObservedLimits};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// Requested, applied and actual limits; see `daemon/runtime/verbose_info.rs`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct VerboseInfo {
    #[serde(deserialize_with = "limits")]
    pub(super) asked: LimitsPatch,
    /// Applied values, by file.
    pub(super) applied: BTreeMap<String, String>,
    /// None if the cgroup no longer exists.
    pub(super) actual: Option<ObservedLimits>,
    pub(super) drift: Vec<Drifted>,
    /// None if the cgroup no longer exists, or cannot be read.
    #[serde(default)]
    pub(super) effective: Option<EffectiveLimits>,
    /// For pods only.
    #[serde(default, deserialize_with = "some_limits")]
    pub(super) overhead: Option<LimitsPatch>,
}

/// Reads limits, which are plain numbers in verbose answers; -1 is unlimited.
fn limits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LimitsPatch, D::Error> {
    let mut plain = Value::deserialize(deserializer)?;
    for (key, variant) in [("cpu_quota", "Micros"), ("memory", "Bytes"), ("memory_swap", "Bytes")] {
        let Some(value) = plain.get_mut(key) else { continue };
        if let Some(number) = value.as_i64() {
            *value = if number == -1 { json!("Unlimited") } else { json!({ variant: number }) };
        }
    }
    LimitsPatch::deserialize(plain).map_err(serde::de::Error::custom)
}

fn some_limits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LimitsPatch>, D::Error> {
    #[derive(Deserialize)]
    struct Plain(#[serde(deserialize_with = "limits")] LimitsPatch);
    Ok(Option::<Plain>::deserialize(deserializer)?.map(|Plain(limits)| limits))
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

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, CpuQuota, MemoryLimit, Micros};

    use super::*;

    #[test]
    fn limits_are_read_from_plain_numbers() {
        let asked = json!({
            "cpu_quota": 50_000, "cpu_period": null, "cpu_shares": 512, "memory": 67_108_864, "memory_swap": -1,
            "cpuset_cpus": null, "cpuset_mems": null, "hugepages": {}, "unified": {}, "oom_score_adj": null,
        });
        let text = json!({ "asked": asked, "applied": {}, "actual": null, "drift": [], "overhead": asked });
        let info: VerboseInfo = serde_json::from_value(text).unwrap();
        assert_eq!(info.asked.cpu_quota, Some(CpuQuota::Micros(Micros(50_000))));
        assert_eq!(info.asked.memory, Some(MemoryLimit::Bytes(Bytes(67_108_864))));
        assert_eq!(info.asked.memory_swap, Some(MemoryLimit::Unlimited));
        assert_eq!((info.overhead, info.asked.cpu_period), (Some(info.asked), None));
    }
}
