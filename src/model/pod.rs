//! The request to create a pod.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cgroup_path::CgroupPath;
use crate::pod_resources::PodResourceConfig;
use crate::resources::LimitsPatch;
use crate::security::PodSecurity;

/// The identity of a pod in Kubernetes.
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

/// A pod as requested by the client. Kept verbatim, since PodSandboxStatus must return it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodSpec {
    pub meta: PodMeta,
    /// Empty with the host's network: the pod then has the host's name.
    pub hostname: String,
    /// The directory for logs of the pod's containers; `None`: containers are not logged.
    pub log_directory: Option<PathBuf>,
    pub dns: Option<Dns>,
    pub port_mappings: Vec<PortMapping>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// From the annotations `kubernetes.io/ingress-bandwidth` and `egress-bandwidth`. Older records do
    /// not have this field.
    #[serde(default)]
    pub bandwidth: Bandwidth,
    /// The cgroup that the client created for the pod and owns; `None`: crisp creates one.
    pub cgroup_parent: Option<CgroupPath>,
    pub sysctls: BTreeMap<String, String>,
    pub overhead: LimitsPatch,
    pub resources: LimitsPatch,
    /// The declared resources of its containers; `None` if the client sent none. Older records do
    /// not have this field.
    #[serde(default)]
    pub pod_resources: Option<PodResourceConfig>,
    pub security: PodSecurity,
    /// The name of the runtime handler; "" is the default one.
    pub handler: String,
}

/// The pod as CreateContainer repeats it: the part that crisp uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepeatedPod {
    pub meta: PodMeta,
    pub privileged: bool,
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

/// How fast a pod may send and receive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Into the pod.
    pub ingress: Option<BitRate>,
    /// Out of the pod.
    pub egress: Option<BitRate>,
}

/// In bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BitRate(pub u64);

/// The state of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodState {
    Ready,
    /// Stopped, or its shim no longer exists.
    NotReady,
    /// Its record cannot be read. It can be listed, stopped and removed. Never stored in a record.
    Unreadable,
}
