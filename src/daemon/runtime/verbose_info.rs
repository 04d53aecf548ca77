//! The additional information of verbose responses.

use cgroup::{AppliedValues, CurrentLimits, Drift, LevelReadings};
use model::resources::LimitsPatch;
use oci_spec::runtime::Spec;
use serde::Serialize;
use serde_json::{Value, json};

use super::Runtime;
use super::plain_json::plain_json;
use crate::sandbox_client::SandboxClient;
use crate::store::{ContainerRecord, PodRecord};

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
            "cgroupDriver": match &self.driver {
                cgroup::Driver::Cgroupfs => "cgroupfs".to_owned(),
                cgroup::Driver::Systemd(systemd) => format!("systemd {}", systemd.version()),
            },
            "selinux": self.selinux.is_there(),
            "userNamespaces": { "offered": self.user_ns.is_none(), "reason": self.user_ns },
            "pods": self.pods.all().len(),
            "containers": self.containers.all().len(),
            "shims": self.sandboxes.lock().len(),
            "images": self.images_info(),
        })
    }

    fn images_info(&self) -> Value {
        let image::Usage { path, bytes, inodes } = self.images.usage();
        let pulling = self.images.traffic().pulling;
        let pull = |pull: &image::ActivePull| {
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
            "shim": SandboxClient::pid(&dir),
            "namespaces": shown(&pod.sandbox),
            "cgroup": shown(&pod.cgroup),
            "selinux": pod.selinux,
            "resources": self.pod_resources_info(pod),
            "unreadable": pod.unreadable.as_ref().map(ToString::to_string),
            "config": shown(&pod.spec),
        })
    }

    /// Returns the limits of a pod, and of each of its containers.
    fn pod_resources_info(&self, pod: &PodRecord) -> Value {
        let now = self.limits_of_pod(pod);
        let mut info = resources_info(&pod.spec.resources, &pod.applied, now.as_ref());
        info["overhead"] = shown(&pod.spec.overhead);
        let mut levels = LevelReadings::default();
        info["effective"] =
            json!(now.and_then(|_| self.effective_limits(&pod.cgroup.path, &pod.cgroup.path, &mut levels)));
        let containers = self.containers_of(&pod.id).into_iter().map(|entry| {
            let container = entry.get();
            let now = self.limits(&entry, &container);
            let mut info = resources_info(&container.spec.resources, &container.applied, now.as_ref());
            info["name"] = json!(container.spec.meta.name);
            let effective = now.and_then(|_| self.effective_limits(&container.cgroup, &pod.cgroup.path, &mut levels));
            info["effective"] = json!(effective);
            (container.id.to_string(), info)
        });
        info["containers"] = Value::Object(containers.collect());
        info
    }

    /// `now` has the kernel's limits, if the container has a cgroup.
    pub(crate) fn container_info(&self, container: &ContainerRecord, now: Option<&CurrentLimits>) -> Value {
        let dir = self.layout.container(&container.pod, &container.id);
        let mut spec = safe_fs::read_json::<Spec>(&dir.join("config.json")).ok().flatten();
        if let Some(spec) = &mut spec {
            // A resize does not write the file.
            self.set_resource_annotations(spec, container);
        }
        let mut resources = resources_info(&container.spec.resources, &container.applied, now);
        let pod = self.pod_cgroup_of(container);
        let effective = now.and_then(|_| self.effective_limits(&container.cgroup, &pod, &mut LevelReadings::default()));
        resources["effective"] = json!(effective);
        json!({
            "pid": container.state.pid(),
            "pod": container.pod,
            "directory": dir,
            "writableLayer": self.layout.writable_layer(&container.id),
            "cgroup": container.cgroup,
            "user": shown(&container.user),
            "selinux": container.selinux,
            "stopSignal": container.stop_signal.to_string(),
            "resources": resources,
            "cdiDevices": shown(&container.cdi),
            "unreadable": container.unreadable.as_ref().map(ToString::to_string),
            "config": shown(&container.spec),
            "runtimeSpec": spec,
        })
    }
}

/// Returns the JSON of a part of a record; null if it has none, which no type of `model` lacks.
fn shown(value: &impl Serialize) -> Value {
    plain_json(value).unwrap_or_default()
}

/// `asked`: the request of CRI. Applied: the value that crisp wrote to each file. Actual: the
/// kernel's current values. Drift: files where these differ, because another process wrote to them.
fn resources_info(asked: &LimitsPatch, settings: &AppliedValues, now: Option<&CurrentLimits>) -> Value {
    let applied = settings.iter().map(|(knob, setting)| (knob.file().to_owned(), json!(setting.written)));
    let drift = now.into_iter().flat_map(|now| &now.drift);
    let drift = drift.map(|Drift { knob, wrote, read, found }| {
        json!({ "file": knob.file(), "wrote": wrote, "read": read, "found": found })
    });
    json!({
        "asked": shown(asked),
        "applied": applied.collect::<serde_json::Map<_, _>>(),
        "actual": now.map(|now| shown(&now.observed)),
        "drift": drift.collect::<Vec<_>>(),
    })
}
