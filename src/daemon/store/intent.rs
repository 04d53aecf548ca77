//! `intent.json`: the part of a pod's or container's state that every release can read.
//!
//! It is written before anything is created, so that everything can be found and removed, and it
//! has the identity of the pod or container, so that it can be listed and its name and addresses
//! stay reserved. Fields may be added, but never changed or removed. A field that is missing or
//! cannot be read is ignored, without an effect on the others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use model::{CgroupPath, ContainerMeta, ContainerSpec, PodMeta, PodSpec, PortMapping, Signal};
use security::Labels;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::record::{ContainerImage, NetworkKind, PodCgroup};

/// The name of the file.
pub(crate) const INTENT_FILE: &str = "intent.json";

/// The cgroup of a pod or container, and whether crisp must remove it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CgroupIntent {
    #[serde(deserialize_with = "lenient")]
    pub(crate) cgroup: Option<CgroupPath>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) ours: bool,
}

/// The intent of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PodIntent {
    #[serde(deserialize_with = "lenient")]
    pub(crate) cgroup: Option<CgroupPath>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) ours: bool,
    #[serde(deserialize_with = "lenient")]
    pub(crate) meta: Option<PodMeta>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) created: Option<SystemTime>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) handler: Option<String>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) port_mappings: Option<Vec<PortMapping>>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) selinux: Option<Labels>,
    /// Written with `ips` when the pod is connected.
    #[serde(deserialize_with = "lenient")]
    pub(crate) network: Option<NetworkKind>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) ips: Option<Vec<IpAddr>>,
}

/// The intent of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerIntent {
    #[serde(deserialize_with = "lenient")]
    pub(crate) cgroup: Option<CgroupPath>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) ours: bool,
    #[serde(deserialize_with = "lenient")]
    pub(crate) meta: Option<ContainerMeta>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) created: Option<SystemTime>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) image: Option<ContainerImage>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) log: Option<PathBuf>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) stop_signal: Option<Signal>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) selinux: Option<Labels>,
}

impl PodIntent {
    pub(crate) fn new(spec: &PodSpec, cgroup: &PodCgroup, selinux: Option<&Labels>) -> Self {
        Self {
            cgroup: Some(cgroup.path.clone()),
            ours: cgroup.ours,
            meta: Some(spec.meta.clone()),
            created: Some(SystemTime::now()),
            handler: Some(spec.handler.clone()),
            labels: Some(spec.labels.clone()),
            annotations: Some(spec.annotations.clone()),
            port_mappings: Some(spec.port_mappings.clone()),
            selinux: selinux.cloned(),
            network: None,
            ips: None,
        }
    }

    /// Adds fields from the record: earlier releases wrote fewer fields into the intent.
    pub(crate) fn fill_from(&mut self, record: &Value) {
        if self.cgroup.is_none() {
            (self.cgroup, self.ours) = (at(record, "/cgroup/path"), at(record, "/cgroup/ours").unwrap_or_default());
        }
        fill(&mut self.meta, record, "/spec/meta");
        fill(&mut self.created, record, "/created");
        fill(&mut self.handler, record, "/spec/handler");
        fill(&mut self.labels, record, "/spec/labels");
        fill(&mut self.annotations, record, "/spec/annotations");
        fill(&mut self.port_mappings, record, "/spec/port_mappings");
        fill(&mut self.selinux, record, "/selinux");
        fill(&mut self.network, record, "/network");
        fill(&mut self.ips, record, "/ips");
    }
}

impl ContainerIntent {
    pub(crate) fn new(spec: &ContainerSpec, cgroup: &CgroupPath, image: ContainerImage, stop_signal: Signal) -> Self {
        Self {
            cgroup: Some(cgroup.clone()),
            ours: true,
            meta: Some(spec.meta.clone()),
            created: Some(SystemTime::now()),
            labels: Some(spec.labels.clone()),
            annotations: Some(spec.annotations.clone()),
            image: Some(image),
            stop_signal: Some(stop_signal),
            log: None,
            selinux: None,
        }
    }

    /// Adds fields from the record.
    pub(crate) fn fill_from(&mut self, record: &Value) {
        if self.cgroup.is_none() {
            (self.cgroup, self.ours) = (at(record, "/cgroup"), true);
        }
        fill(&mut self.meta, record, "/spec/meta");
        fill(&mut self.created, record, "/created");
        fill(&mut self.labels, record, "/spec/labels");
        fill(&mut self.annotations, record, "/spec/annotations");
        fill(&mut self.image, record, "/image");
        fill(&mut self.log, record, "/log");
        fill(&mut self.stop_signal, record, "/stop_signal");
        fill(&mut self.selinux, record, "/selinux");
    }
}

/// Reads the intent of the pod or container in `dir`; empty if it is missing or damaged.
pub(crate) fn read<T: DeserializeOwned + Default>(dir: &Path) -> T {
    std::fs::read(dir.join(INTENT_FILE)).map(|bytes| parse(&bytes)).unwrap_or_default()
}

/// Parses the content of the file.
pub(crate) fn parse<T: DeserializeOwned + Default>(bytes: &[u8]) -> T {
    serde_json::from_slice(bytes).unwrap_or_default()
}

/// Treats an unknown value of another release as missing.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(field: D) -> Result<T, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(field)?).unwrap_or_default())
}

fn fill<T: DeserializeOwned>(field: &mut Option<T>, record: &Value, pointer: &str) {
    if field.is_none() {
        *field = at(record, pointer);
    }
}

fn at<T: DeserializeOwned>(record: &Value, pointer: &str) -> Option<T> {
    record.pointer(pointer).and_then(|value| T::deserialize(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::tests::support::{container_record, pod_record};

    fn pod_intent() -> PodIntent {
        let record = pod_record();
        let intent = PodIntent::new(&record.spec, &record.cgroup, record.selinux.as_ref());
        PodIntent { network: Some(record.network), ips: Some(record.ips), created: Some(record.created), ..intent }
    }

    #[test]
    fn an_intent_is_read_as_it_was_written() {
        let intent = pod_intent();
        assert_eq!(parse::<PodIntent>(&serde_json::to_vec(&intent).unwrap()), intent);
        let cgroup: CgroupIntent = parse(&serde_json::to_vec(&intent).unwrap());
        assert_eq!((cgroup.cgroup, cgroup.ours), (intent.cgroup, intent.ours));
    }

    #[test]
    fn unknown_fields_and_values_are_ignored_alone() {
        let mut newer = serde_json::to_value(pod_intent()).unwrap();
        newer["colour"] = "blue".into();
        newer["network"] = "carrier pigeon".into();
        newer["meta"]["cluster"] = "north".into();
        newer["handler"] = serde_json::json!({ "name": "x" });
        let read: PodIntent = parse(newer.to_string().as_bytes());
        assert_eq!(read, PodIntent { network: None, handler: None, ..pod_intent() });
    }

    #[test]
    fn a_damaged_intent_is_empty() {
        let whole = serde_json::to_vec(&pod_intent()).unwrap();
        for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
            assert_eq!(parse::<PodIntent>(&whole[..cut]), PodIntent::default(), "{cut} bytes");
        }
        assert_eq!(parse::<PodIntent>(b"[1, 2]"), PodIntent::default());
    }

    #[test]
    fn an_intent_of_an_earlier_release_is_filled_from_the_record() {
        let mut pod: PodIntent = parse(br#"{"cgroup":"/kubepods/pod1","ours":false}"#);
        pod.fill_from(&serde_json::to_value(pod_record()).unwrap());
        assert_eq!(pod, PodIntent { cgroup: CgroupPath::new("/kubepods/pod1").ok(), ours: false, ..pod_intent() });
        let (mut container, record) = (ContainerIntent::default(), container_record());
        container.fill_from(&serde_json::to_value(&record).unwrap());
        assert_eq!((container.cgroup, container.meta), (Some(record.cgroup), Some(record.spec.meta)));
        assert_eq!((container.image, container.stop_signal), (Some(record.image), Some(record.stop_signal)));
    }
}
