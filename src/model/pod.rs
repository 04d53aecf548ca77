//! What was asked of a pod.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::pod_resources::PodResourceConfig;
use crate::resources::LimitsPatch;
use crate::security::PodSecurity;

/// Who the pod is in Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodMeta {
    pub name: String,
    pub uid: String,
    pub namespace: String,
    pub attempt: u32,
}

impl fmt::Display for PodMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, uid, namespace, attempt } = self;
        write!(f, "{namespace}/{name} (uid {uid}, attempt {attempt})")
    }
}

/// A pod as the client asked for it. Kept verbatim, since status has to give it back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodSpec {
    pub meta: PodMeta,
    /// Empty with the host's network: the pod then has the host's name.
    pub hostname: String,
    /// Where the pod's containers log to; none when nothing is to be logged.
    pub log_directory: Option<PathBuf>,
    pub dns: Option<Dns>,
    pub port_mappings: Vec<PortMapping>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// The cgroup that the client made for the pod and owns; none where crisp is to make one.
    pub cgroup_parent: Option<String>,
    pub sysctls: BTreeMap<String, String>,
    pub overhead: LimitsPatch,
    pub resources: LimitsPatch,
    /// What its containers will ask for; none where nobody told. Older records do not have it.
    #[serde(default)]
    pub pod_resources: Option<PodResourceConfig>,
    pub security: PodSecurity,
    /// The runtime handler by name; "" is the default one.
    pub handler: String,
}

/// The pod's resolv.conf.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    pub protocol: Protocol,
    pub container_port: u16,
    pub host_port: u16,
    pub host_ip: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// Whether the pod can still hold containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodState {
    Ready,
    /// Stopped, or its shim is gone.
    NotReady,
    /// Its record cannot be read: it can be looked at, stopped and removed. No record says so of itself.
    Unreadable,
}
