//! Where things lie, and how records are written.
//!
//! ```text
//! STATE/pods/POD/            all of a pod's runtime state; on a tmpfs, so no record outlives a reboot
//!   intent.json              written before anything else is made: who it is, and what to clear away, for all releases
//!   pod.json                 the record; the pod exists once it is there
//!   shim.sock shim.pid shim.start shim.log netns shm/
//!   etc/                     a small file system: resolv.conf hostname hosts
//!   containers/CONTAINER/    the same for a container
//!     intent.json container.json config.json launch.json exit.json resize-journal.json rootfs/ libcontainer/
//!     X.new                  what X held before, and is to hold next
//! STATE/parent-cgroups.json  the cgroups that were made above those of pods
//! ROOT/containers/CONTAINER/ its writable layer: upper/ work/, and owner: the path of the directory above;
//!                            volumes/N: what its image declares, in the order of their paths
//! ROOT/cni/                  what CNI plugins connected, and with which configuration
//! ```
//!
//! A release finds pods of other releases, later ones too, by these names: of directories, and of `intent.json`, `pod.json`,
//! `container.json`, `exit.json`, `netns` and `shim.*`. None of them is ever given to something else.

use std::path::PathBuf;

use model::{ContainerId, PodId};

/// The two directories of one daemon.
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

    /// What was made above the cgroups of pods.
    pub(crate) fn parent_cgroups(&self) -> PathBuf {
        self.state.join("parent-cgroups.json")
    }

    /// Where all writable layers are.
    pub fn writable_layers(&self) -> PathBuf {
        self.root.join("containers")
    }

    /// What CNI connected.
    pub(crate) fn cni(&self) -> PathBuf {
        self.root.join("cni")
    }

    pub(crate) fn writable_layer(&self, id: &ContainerId) -> PathBuf {
        self.writable_layers().join(id.as_str())
    }
}
