//! A pod to attach to a network, and the result.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use model::{Bandwidth, Dns, PortMapping};

/// The interface of a pod, as every runtime calls it.
pub const INTERFACE: &str = "eth0";

/// A pod that is to be attached, or detached.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pod {
    /// The pod's id in crisp, which plugins get as the container id.
    pub id: String,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    /// The pinned network namespace; `None` if it was removed.
    pub netns: Option<PathBuf>,
    /// Only those with a port of the host.
    pub ports: Vec<PortMapping>,
    pub bandwidth: Bandwidth,
    pub dns: Option<Dns>,
    pub annotations: BTreeMap<String, String>,
    /// The path of its cgroup.
    pub cgroup: String,
}

/// A pod's place in a network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attached {
    /// First the primary one.
    pub ips: Vec<IpAddr>,
    /// Requested settings that the pod does not have, in sentences for a log.
    pub warnings: Vec<String>,
}
