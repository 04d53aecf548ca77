//! What a network is told of a pod, and what it answers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use model::{Dns, PortMapping};

/// The interface of a pod, as every runtime calls it.
pub const INTERFACE: &str = "eth0";

/// A pod that is to be attached, or detached.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pod {
    /// The pod's id in crisp, which plugins know it by.
    pub id: String,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    /// The pinned network namespace; none where it is gone already.
    pub netns: Option<PathBuf>,
    /// Only those with a port of the host.
    pub ports: Vec<PortMapping>,
    pub bandwidth: Bandwidth,
    pub dns: Option<Dns>,
    pub annotations: BTreeMap<String, String>,
    /// The path of its cgroup.
    pub cgroup: String,
}

/// How fast a pod may send and receive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// Into the pod.
    pub ingress: Option<Rate>,
    /// Out of the pod.
    pub egress: Option<Rate>,
}

/// In bits each second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(pub u64);

/// A pod's place in a network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attached {
    /// First the primary one.
    pub ips: Vec<IpAddr>,
    /// What the pod asked for and does not have, in sentences for a log.
    pub warnings: Vec<String>,
}
