//! The arguments of plugins: the pod's identity in `CNI_ARGS`, and capabilities in `runtimeConfig`.

use model::{Bandwidth, BitRate, ErrorClass, ErrorKind, PortMapping, Protocol};
use serde_json::{Map, Value, json};

use crate::attachment::Pod;
use crate::cni::conf::is_name;
use crate::cni::gc::PodIdentity;

/// The burst if none is given: the maximum of the bandwidth plugin, as containerd and CRI-O do.
const BURST: u32 = u32::MAX;

/// A pod whose identity plugins cannot accept.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadPod {
    #[error(
        "invalid pod id {0:?} for CNI: expected a letter or digit, then letters, digits, dots, hyphens or underscores"
    )]
    Id(String),
    #[error(
        "the pod's {field} {value:?} is not valid in CNI_ARGS: it has a semicolon, an equals sign or a control character"
    )]
    Argument { field: &'static str, value: String },
}

impl ErrorClass for BadPod {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Id(_) | Self::Argument { .. } => ErrorKind::Invalid,
        }
    }
}

/// Returns `CNI_ARGS` for a pod. A value must not look like a further argument.
pub(crate) fn identity(pod: &Pod) -> Result<String, BadPod> {
    if !is_name(&pod.id) {
        return Err(BadPod::Id(pod.id.clone()));
    }
    let known = [
        ("namespace", "K8S_POD_NAMESPACE", &pod.namespace),
        ("name", "K8S_POD_NAME", &pod.name),
        ("id", "K8S_POD_INFRA_CONTAINER_ID", &pod.id),
        ("uid", "K8S_POD_UID", &pod.uid),
    ];
    // Without it, plugins reject unknown arguments.
    let mut text = "IgnoreUnknown=1".to_owned();
    for (field, key, value) in known {
        if value.contains(|c: char| matches!(c, ';' | '=') || c.is_control()) {
            return Err(BadPod::Argument { field, value: value.clone() });
        }
        text.push_str(&format!(";{key}={value}"));
    }
    Ok(text)
}

/// Returns the pod of [`identity`]; what is missing is empty.
pub(crate) fn parse_identity(args: &str) -> PodIdentity {
    let value = |key: &str| {
        let values = args.split(';').filter_map(|argument| argument.split_once('='));
        values.into_iter().find(|(known, _)| *known == key).map(|(_, value)| value.to_owned()).unwrap_or_default()
    };
    PodIdentity { namespace: value("K8S_POD_NAMESPACE"), name: value("K8S_POD_NAME"), uid: value("K8S_POD_UID") }
}

/// Returns the arguments of a pod of which only the id is known.
pub(crate) fn minimal_args(pod: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_INFRA_CONTAINER_ID={pod}")
}

/// Returns the values for all capabilities, with the names of the CNI conventions and of
/// containerd.
pub(crate) fn offered(pod: &Pod) -> Map<String, Value> {
    let mut offered = Map::new();
    let ports: Vec<_> = pod.ports.iter().filter(|port| port.host_port != 0).map(port).collect();
    if !ports.is_empty() {
        offered.insert("portMappings".to_owned(), ports.into());
    }
    if pod.bandwidth != Bandwidth::default() {
        offered.insert("bandwidth".to_owned(), bandwidth(pod.bandwidth));
    }
    if let Some(dns) = &pod.dns {
        let dns = json!({ "servers": dns.servers, "searches": dns.searches, "options": dns.options });
        offered.insert("dns".to_owned(), dns);
    }
    offered.insert("io.kubernetes.cri.pod-annotations".to_owned(), json!(pod.annotations));
    if !pod.cgroup.is_empty() {
        offered.insert("cgroupPath".to_owned(), json!(pod.cgroup));
    }
    offered
}

/// The capabilities that a pod requests: the daemon logs those without a plugin.
pub(crate) const ASKED: [&str; 2] = ["portMappings", "bandwidth"];

fn port(port: &PortMapping) -> Value {
    let protocol = match port.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    let mut mapping = json!({ "hostPort": port.host_port, "containerPort": port.container_port, "protocol": protocol });
    if !port.host_ip.is_empty() {
        mapping["hostIP"] = json!(port.host_ip);
    }
    mapping
}

fn bandwidth(wanted: Bandwidth) -> Value {
    let Bandwidth { ingress, egress } = wanted;
    let mut limits = Map::new();
    for (rate, rate_key, burst_key) in [(ingress, "ingressRate", "ingressBurst"), (egress, "egressRate", "egressBurst")]
    {
        if let Some(BitRate(rate)) = rate {
            limits.insert(rate_key.to_owned(), json!(rate));
            limits.insert(burst_key.to_owned(), json!(BURST));
        }
    }
    Value::Object(limits)
}
