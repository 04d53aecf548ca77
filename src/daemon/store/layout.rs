//! The paths of all files of the daemon.
//!
//! ```text
//! STATE/pods/POD/            runtime state of a pod; on a tmpfs, so that no record outlives a reboot
//!   intent.json              written before anything is created: identity and what to remove, readable by all releases
//!   pod.json                 the record; the pod exists once the file exists
//!   shim.sock shim.pid shim.start shim.log netns shm/
//!   resize-history.jsonl resize-history.1.jsonl   the last resizes, not needed for anything else
//!   etc/                     a small file system: resolv.conf hostname hosts
//!   containers/CONTAINER/    the same for a container
//!     intent.json container.json config.json launch.json exit.json resize-journal.json rootfs/ libcontainer/
//!     resize-notice/         a small file system with the file about resizes, if the pod selects it
//!     X.new                  the next content of X, while it is written
//! STATE/parent-cgroups.json  cgroups that crisp created above those of pods
//! ROOT/containers/CONTAINER/ its writable layer: upper/ work/, and owner: the path of the directory above;
//!                            volumes/N: the volumes of its image, in the order of their paths
//! ROOT/cni/                  networks that CNI plugins connected, with their configuration
//! ```
//!
//! Other releases, also later ones, find pods by these names: of directories, and of `intent.json`,
//! `pod.json`, `container.json`, `exit.json`, `netns` and `shim.*`. None of them is reused for
//! something else.

use std::path::PathBuf;

use model::{ContainerId, PodId};

/// The two directories of a daemon.
#[derive(Debug, Clone)]
pub struct Layout {
    pub state: PathBuf,
    pub root: PathBuf,
}

impl Layout {
    pub fn pods(&self) -> PathBuf {
        self.state.join("pods")
    }

    pub(crate) fn pod(&self, id: &PodId) -> PathBuf {
        self.pods().join(id.as_str())
    }

    pub(crate) fn containers(&self, pod: &PodId) -> PathBuf {
        self.pod(pod).join("containers")
    }

    pub(crate) fn container(&self, pod: &PodId, id: &ContainerId) -> PathBuf {
        self.containers(pod).join(id.as_str())
    }

    /// The list of cgroups that crisp created above those of pods.
    pub(crate) fn parent_cgroups(&self) -> PathBuf {
        self.state.join("parent-cgroups.json")
    }

    /// The directory of all writable layers.
    pub fn writable_layers(&self) -> PathBuf {
        self.root.join("containers")
    }

    /// The directory of CNI's cached results.
    pub(crate) fn cni(&self) -> PathBuf {
        self.root.join("cni")
    }

    pub(crate) fn writable_layer(&self, id: &ContainerId) -> PathBuf {
        self.writable_layers().join(id.as_str())
    }
}
