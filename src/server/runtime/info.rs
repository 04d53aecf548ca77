//! What is told on a verbose request: more than CRI has fields for.

use serde_json::{Value, json};

use super::Runtime;
use crate::shim::note;
use crate::store::{ContainerRecord, PodRecord, disk};

impl Runtime {
    pub(crate) fn info(&self) -> Value {
        json!({
            "release": env!("CARGO_PKG_VERSION"),
            "root": self.config.root,
            "state": self.config.state,
            "cgroups": match self.cgroups.version() {
                cgroup::Version::V1 => "v1",
                cgroup::Version::V2 => "v2",
            },
            "pods": self.pods.all().len(),
            "containers": self.containers.all().len(),
            "shims": self.shims.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len(),
            "images": self.images_info(),
        })
    }

    fn images_info(&self) -> Value {
        let image::Usage { path, bytes, inodes } = self.images.usage();
        let pulling = self.images.traffic().pulling;
        let pull = |pull: &image::Pulling| {
            json!({
                "image": pull.image,
                "seconds": pull.since.as_secs(),
                "bytes": pull.bytes,
                "totalBytes": pull.total,
                "layers": pull.layers,
                "totalLayers": pull.layers_total,
            })
        };
        json!({
            "store": path,
            "count": self.images.list().len(),
            "bytes": bytes,
            "inodes": inodes,
            "pulls": pulling.iter().map(pull).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn pod_info(&self, pod: &PodRecord) -> Value {
        let dir = self.pod_dir(&pod.id);
        json!({
            "directory": dir,
            "shim": note::pid(&dir),
            "namespaces": pod.held,
            "cgroup": pod.cgroup,
            "config": pod.spec,
        })
    }

    pub(crate) fn container_info(&self, container: &ContainerRecord) -> Value {
        let dir = self.layout.container(&container.pod, &container.id);
        let spec = disk::read_json::<Value>(&dir.join("config.json")).ok().flatten();
        json!({
            "pid": container.phase.pid(),
            "pod": container.pod,
            "directory": dir,
            "writableLayer": self.layout.writable(&container.id),
            "cgroup": container.cgroup,
            "user": container.user,
            "stopSignal": container.stop_signal.to_string(),
            "config": container.spec,
            "runtimeSpec": spec,
        })
    }
}
