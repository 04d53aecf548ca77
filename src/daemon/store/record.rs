//! The records of pods and containers, from which the next daemon continues.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use cgroup::AppliedValues;
use model::{CgroupPath, ContainerId, ContainerSpec, ContainerState, PodId, PodSpec, PodState, Signal};
use oci::ProcessUser;
use oci::cdi::InjectedDevice;
use security::Labels;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shim_protocol::Sandbox;

use super::table::Record;

/// Incremented when an older daemon cannot read the records any more. Listing and removing need
/// only the intents beside the records ([`super::intent`]).
pub(crate) const VERSION: u32 = 2;
/// Maximum bytes of an invalid version in an error.
const SHOWN_MAX: usize = 40;

/// The reason why a record cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("record {file} has version {found}, and this daemon reads version {VERSION}")]
    Version { file: &'static str, found: String },
    #[error("record {file} is damaged: {problem}")]
    Damaged { file: &'static str, problem: String },
}

/// Parses the content of `file`. The version is checked first: a record of another version might
/// look damaged.
pub(crate) fn parse<R: Record + DeserializeOwned>(file: &'static str, id: &str, bytes: &[u8]) -> Result<R, Unreadable> {
    let damaged = |problem: String| Unreadable::Damaged { file, problem };
    let record: Value = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    match &record["version"] {
        version if *version == VERSION => {}
        Value::Null => return Err(damaged("missing version".to_owned())),
        other => {
            let found = other.to_string().chars().take(SHOWN_MAX).collect();
            return Err(Unreadable::Version { file, found });
        }
    }
    let record: R = serde_json::from_value(record).map_err(|error| damaged(error.to_string()))?;
    if record.id() == id { Ok(record) } else { Err(damaged(format!("it has the id {}", record.id()))) }
}

/// The record of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PodRecord {
    pub(crate) version: u32,
    pub(crate) id: PodId,
    pub(crate) spec: PodSpec,
    pub(crate) created: SystemTime,
    pub(crate) state: PodState,
    /// The requested host name, else the host's.
    pub(crate) hostname: String,
    /// The paths of its namespaces.
    pub(crate) sandbox: Sandbox,
    pub(crate) cgroup: PodCgroup,
    /// The values that crisp wrote to its cgroup.
    #[serde(default)]
    pub(crate) applied: AppliedValues,
    /// The primary address first. Empty with the host's network, or without a network.
    pub(crate) ips: Vec<IpAddr>,
    /// Missing in older records, together with the network.
    #[serde(default)]
    pub(crate) network: NetworkKind,
    /// Its SELinux labels, shared by its containers; `None` on hosts without SELinux.
    #[serde(default)]
    pub(crate) selinux: Option<Labels>,
    /// Set if the file cannot be read: the other fields are from the intent, and never written to
    /// the file.
    #[serde(skip)]
    pub(crate) unreadable: Option<Arc<Unreadable>>,
}

impl PodRecord {
    /// A stopped pod has no addresses.
    pub(crate) fn stop(&mut self) {
        self.state = PodState::NotReady;
        self.network = NetworkKind::None;
        self.ips.clear();
    }
}

/// The network of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NetworkKind {
    /// None: the host's network, loopback alone, or the pod is stopped.
    #[default]
    None,
    Cni,
    /// crisp's bridge.
    Bridge,
}

/// The parent cgroup of a pod's containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodCgroup {
    pub(crate) path: CgroupPath,
    /// True if crisp created the cgroup and removes it; otherwise the client owns it, and crisp
    /// never writes to it.
    pub(crate) ours: bool,
}

/// The record of a container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub(crate) version: u32,
    pub(crate) id: ContainerId,
    pub(crate) pod: PodId,
    pub(crate) spec: ContainerSpec,
    pub(crate) created: SystemTime,
    pub(crate) state: ContainerState,
    pub(crate) image: ContainerImage,
    /// The images of its mounts by the name in the request, with their IDs.
    #[serde(default)]
    pub(crate) mounted: BTreeMap<String, String>,
    pub(crate) user: ContainerUser,
    /// The absolute path of the log file on the host.
    pub(crate) log: Option<PathBuf>,
    pub(crate) stop_signal: Signal,
    pub(crate) cgroup: CgroupPath,
    /// The values that crisp wrote to its cgroup.
    #[serde(default)]
    pub(crate) applied: AppliedValues,
    /// Its CDI devices.
    #[serde(default)]
    pub(crate) cdi: Vec<InjectedDevice>,
    /// Its SELinux labels; `None` on hosts without SELinux.
    #[serde(default)]
    pub(crate) selinux: Option<Labels>,
    /// Set if the file, or that of the pod, cannot be read.
    #[serde(skip)]
    pub(crate) unreadable: Option<Arc<Unreadable>>,
}

/// The image at the time of CreateContainer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerImage {
    /// `sha256:…` of the image's configuration.
    pub(crate) id: String,
    /// A tag if it has one, also if the client requested an ID.
    pub(crate) name: String,
    /// A repository digest if it has one, else its ID.
    pub(crate) reference: String,
}

/// The user of the container's first process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// All groups beside `gid`.
    pub(crate) groups: Vec<u32>,
}

impl From<ProcessUser> for ContainerUser {
    fn from(ProcessUser { user, groups }: ProcessUser) -> Self {
        Self { uid: user.uid, gid: user.gid, groups }
    }
}
