//! What is kept of a pod and of a container: enough for a new daemon to go on where the last one ended.

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

/// Grows when an older daemon could not read the records any more. What that one needs to list and to end what it finds is in the
/// intents beside the records ([`super::intent`]).
pub(crate) const VERSION: u32 = 2;
/// How much of a version that is none is shown.
const SHOWN_MAX: usize = 40;

/// Why a record cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("{file} has version {found}, and this daemon reads version {VERSION}")]
    Version { file: &'static str, found: String },
    #[error("{file} is damaged: {problem}")]
    Damaged { file: &'static str, problem: String },
}

/// The record in the bytes of `file`. The version comes first: the rest of a record of another version may look like damage.
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

/// A pod that exists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PodRecord {
    pub(crate) version: u32,
    pub(crate) id: PodId,
    pub(crate) spec: PodSpec,
    pub(crate) created: SystemTime,
    pub(crate) state: PodState,
    /// The one asked for, else the host's.
    pub(crate) hostname: String,
    /// Where its namespaces are.
    pub(crate) sandbox: Sandbox,
    pub(crate) cgroup: PodCgroup,
    /// What was written to the files of its cgroup.
    #[serde(default)]
    pub(crate) applied: AppliedValues,
    /// First the primary one. Empty with the host's network, or without any network.
    pub(crate) ips: Vec<IpAddr>,
    /// Older records do not have it, nor a network.
    #[serde(default)]
    pub(crate) network: NetworkKind,
    /// Its SELinux labels, which its containers share; none where the host has no SELinux.
    #[serde(default)]
    pub(crate) selinux: Option<Labels>,
    /// Set where the file could not be read: the rest is what the intent says, and is never written over the file.
    #[serde(skip)]
    pub(crate) unreadable: Option<Arc<Unreadable>>,
}

impl PodRecord {
    /// A pod that is stopped has given its addresses back.
    pub(crate) fn stop(&mut self) {
        self.state = PodState::NotReady;
        self.network = NetworkKind::None;
        self.ips.clear();
    }
}

/// What connects a pod to others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NetworkKind {
    /// Nothing: it has the host's network, or loopback alone, or is stopped.
    #[default]
    None,
    Cni,
    /// crisp's own bridge.
    Bridge,
}

/// The cgroup above the pod's containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodCgroup {
    pub(crate) path: CgroupPath,
    /// crisp made it and removes it; else the client owns it and crisp never writes to it.
    pub(crate) ours: bool,
}

/// A container that exists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub(crate) version: u32,
    pub(crate) id: ContainerId,
    pub(crate) pod: PodId,
    pub(crate) spec: ContainerSpec,
    pub(crate) created: SystemTime,
    pub(crate) state: ContainerState,
    pub(crate) image: ContainerImage,
    /// The images that its mounts name, as they were asked for, and the id that each had.
    #[serde(default)]
    pub(crate) mounted: BTreeMap<String, String>,
    pub(crate) user: ContainerUser,
    /// The log file's full path on the host.
    pub(crate) log: Option<PathBuf>,
    pub(crate) stop_signal: Signal,
    pub(crate) cgroup: CgroupPath,
    /// What was written to the files of its cgroup.
    #[serde(default)]
    pub(crate) applied: AppliedValues,
    /// The CDI devices that it was given.
    #[serde(default)]
    pub(crate) cdi: Vec<InjectedDevice>,
    /// As of the pod.
    #[serde(default)]
    pub(crate) selinux: Option<Labels>,
    /// As of the pod. Set also where it is the pod's record that cannot be read.
    #[serde(skip)]
    pub(crate) unreadable: Option<Arc<Unreadable>>,
}

/// The image as it was found when the container was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerImage {
    /// `sha256:…` of the image's configuration.
    pub(crate) id: String,
    /// What people call it, also where the client asked by id.
    pub(crate) name: String,
    /// A repository digest where it has one, else its id.
    pub(crate) reference: String,
}

/// Who the container's first process is.
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
