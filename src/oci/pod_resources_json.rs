//! Pod resources as JSON, for hooks (annotations of a container) and for the annotation of a pod that
//! declares them.
//!
//! The format is protobuf's JSON form of CRI's `PodResourceConfig` and `KubernetesResources`
//! (KEP-4112), with three differences. A quantity is its text, `"500m"`, as everywhere in Kubernetes.
//! The `type` of a container is required, since protobuf reads a missing one as the first value,
//! INIT_CONTAINER. Values of enums are names, not numbers.
//!
//! ```json
//! {
//!   "containers": [{
//!     "name": "app",
//!     "type": "CONTAINER",
//!     "kubernetesResources": {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}},
//!     "mounts": [{"containerPath": "/data", "hostPath": "/srv/data", "readonly": true}],
//!     "devices": [{"containerPath": "/dev/fuse", "hostPath": "/dev/fuse", "permissions": "rw"}],
//!     "CDIDevices": [{"name": "vendor.example/gpu=0"}]
//!   }],
//!   "kubernetesResources": {"limits": {"memory": "2Gi"}}
//! }
//! ```
//!
//! This module writes it. The daemon reads it as the message of CRI: it also accepts the names of the `.proto` files,
//! `kubernetes_resources`, and rejects unknown and duplicate keys.

use std::collections::HashMap;

use model::pod_resources::{ContainerKind, ContainerResourceConfig, PodResourceConfig, ResourceList, Resources};
use model::{Device, IdMapping, ImageName, Mount, MountSource, Propagation};
use oci_spec::runtime::Spec;
use serde_json::{Value, json};

/// The annotation with all declared resources of the pod.
pub const POD_RESOURCES: &str = "io.crisp.pod-resources";
/// The annotation with the container's own requests and limits.
pub const CONTAINER_RESOURCES: &str = "io.crisp.container-resources";
/// Annotations that a hook can trust: only crisp sets them.
pub const OURS: [&str; 2] = [POD_RESOURCES, CONTAINER_RESOURCES];

/// Sets crisp's own annotations for hooks, and removes forged ones of the client.
pub(super) fn add_annotations(
    annotations: &mut HashMap<String, String>,
    pod: Option<&PodResourceConfig>,
    container: Option<&Resources>,
) {
    annotations.retain(|name, _| !OURS.contains(&name.as_str()));
    if let Some(pod) = pod {
        annotations.insert(POD_RESOURCES.to_owned(), pod_json(pod).to_string());
    }
    if let Some(container) = container {
        annotations.insert(CONTAINER_RESOURCES.to_owned(), resource_lists(container).to_string());
    }
}

/// Updates crisp's own annotations in an existing configuration.
pub fn update_annotations(spec: &mut Spec, pod: Option<&PodResourceConfig>, container: Option<&Resources>) {
    let mut annotations = spec.annotations().clone().unwrap_or_default();
    add_annotations(&mut annotations, pod, container);
    spec.set_annotations(Some(annotations));
}

/// Returns the declared resources of a pod.
pub fn pod_json(PodResourceConfig { containers, resources, source: _ }: &PodResourceConfig) -> Value {
    object([
        ("containers", list(containers, container)),
        ("kubernetesResources", resources.as_ref().map_or(Value::Null, resource_lists)),
    ])
}

fn container(config: &ContainerResourceConfig) -> Value {
    let ContainerResourceConfig { name, kind, resources, mounts, devices, cdi_devices } = config;
    let kind = match kind {
        ContainerKind::Init => "INIT_CONTAINER",
        ContainerKind::Regular => "CONTAINER",
    };
    object([
        ("name", json!(name)),
        ("type", json!(kind)),
        ("kubernetesResources", resources.as_ref().map_or(Value::Null, resource_lists)),
        ("mounts", list(mounts, mount)),
        ("devices", list(devices, device)),
        ("CDIDevices", list(cdi_devices, |name| json!({"name": name}))),
    ])
}

fn resource_lists(Resources { requests, limits }: &Resources) -> Value {
    let texts = |amounts: &ResourceList| {
        let texts = amounts.iter().map(|(name, amount)| (name.to_string(), json!(amount.to_string())));
        if amounts.is_empty() { Value::Null } else { texts.collect() }
    };
    object([("requests", texts(requests)), ("limits", texts(limits))])
}

fn device(Device { container_path, host_path, permissions }: &Device) -> Value {
    json!({"containerPath": container_path, "hostPath": host_path.display().to_string(), "permissions": permissions})
}

fn mount(mount: &Mount) -> Value {
    let Mount {
        container_path,
        source,
        readonly,
        recursive_read_only,
        selinux_relabel,
        propagation,
        uid_mappings,
        gid_mappings,
        options,
    } = mount;
    let (host_path, image, image_sub_path) = match source {
        MountSource::Host(path) => (json!(path.display().to_string()), Value::Null, Value::Null),
        MountSource::Image { image, sub_path } => (Value::Null, image_name(image), json!(sub_path)),
    };
    let propagation = match propagation {
        Propagation::Private => "PROPAGATION_PRIVATE",
        Propagation::HostToContainer => "PROPAGATION_HOST_TO_CONTAINER",
        Propagation::Bidirectional => "PROPAGATION_BIDIRECTIONAL",
    };
    object([
        ("containerPath", json!(container_path)),
        ("hostPath", host_path),
        ("readonly", json!(readonly)),
        ("selinuxRelabel", json!(selinux_relabel)),
        ("propagation", json!(propagation)),
        ("uidMappings", list(uid_mappings, id_mapping)),
        ("gidMappings", list(gid_mappings, id_mapping)),
        ("recursiveReadOnly", json!(recursive_read_only)),
        ("image", image),
        ("imageSubPath", image_sub_path),
        ("mountOptions", json!(options)),
    ])
}

fn id_mapping(IdMapping { host, container, length }: &IdMapping) -> Value {
    json!({"hostId": host, "containerId": container, "length": length})
}

fn image_name(ImageName { image, user_specified, annotations, handler }: &ImageName) -> Value {
    object([
        ("image", json!(image)),
        ("annotations", if annotations.is_empty() { Value::Null } else { json!(annotations) }),
        ("userSpecifiedImage", json!(user_specified)),
        ("runtimeHandler", json!(handler)),
    ])
}

fn list<T>(items: &[T], item: impl Fn(&T) -> Value) -> Value {
    items.iter().map(item).collect()
}

/// Returns an object of the fields that are not null, false or empty, as protobuf omits defaults.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let is_set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::Object(_) => true,
    };
    fields.into_iter().filter(|(_, value)| is_set(value)).collect()
}
