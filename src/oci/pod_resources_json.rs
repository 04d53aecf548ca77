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
//! The reader also accepts the names of the `.proto` files, `kubernetes_resources`. It rejects unknown
//! and duplicate keys.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;

use model::pod_resources::{ContainerKind, ContainerResourceConfig, PodResourceConfig, ResourceList, Resources};
use model::{Device, IdMapping, ImageName, Mount, MountSource, Propagation};
use oci_spec::runtime::Spec;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The annotation with all declared resources of the pod: a [`PodJson`].
pub const POD_RESOURCES: &str = "io.crisp.pod-resources";
/// The annotation with the container's own requests and limits: a [`ResourcesJson`].
pub const CONTAINER_RESOURCES: &str = "io.crisp.container-resources";
/// Annotations that a hook can trust: only crisp sets them.
pub const OURS: [&str; 2] = [POD_RESOURCES, CONTAINER_RESOURCES];

/// Sets crisp's own annotations for hooks, and removes forged ones of the client.
pub(super) fn add_annotations(
    annotations: &mut HashMap<String, String>,
    pod: Option<&PodResourceConfig>,
    container: Option<&Resources>,
) -> serde_json::Result<()> {
    annotations.retain(|name, _| !OURS.contains(&name.as_str()));
    if let Some(pod) = pod {
        annotations.insert(POD_RESOURCES.to_owned(), serde_json::to_string(&PodJson::from(pod))?);
    }
    if let Some(container) = container {
        annotations.insert(CONTAINER_RESOURCES.to_owned(), serde_json::to_string(&ResourcesJson::from(container))?);
    }
    Ok(())
}

/// Updates crisp's own annotations in an existing configuration.
pub fn update_annotations(
    spec: &mut Spec,
    pod: Option<&PodResourceConfig>,
    container: Option<&Resources>,
) -> serde_json::Result<()> {
    let mut annotations = spec.annotations().clone().unwrap_or_default();
    add_annotations(&mut annotations, pod, container)?;
    spec.set_annotations(Some(annotations));
    Ok(())
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodJson {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Object<ContainerJson>>,
    #[serde(default, alias = "kubernetes_resources", skip_serializing_if = "Option::is_none")]
    pub kubernetes_resources: Option<Object<ResourcesJson>>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerJson {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: KindJson,
    #[serde(default, alias = "kubernetes_resources", skip_serializing_if = "Option::is_none")]
    pub kubernetes_resources: Option<Object<ResourcesJson>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Object<MountJson>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Object<DeviceJson>>,
    #[serde(default, rename = "CDIDevices", alias = "CDI_devices", skip_serializing_if = "Vec::is_empty")]
    pub cdi_devices: Vec<Object<CdiJson>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum KindJson {
    InitContainer,
    Container,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourcesJson {
    #[serde(default, deserialize_with = "each_once", skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "each_once", skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceJson {
    #[serde(alias = "container_path")]
    pub container_path: String,
    #[serde(alias = "host_path")]
    pub host_path: String,
    pub permissions: String,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CdiJson {
    pub name: String,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MountJson {
    #[serde(alias = "container_path")]
    pub container_path: String,
    #[serde(default, alias = "host_path", skip_serializing_if = "String::is_empty")]
    pub host_path: String,
    #[serde(default, skip_serializing_if = "is_false")]
    pub readonly: bool,
    #[serde(default, alias = "selinux_relabel", skip_serializing_if = "is_false")]
    pub selinux_relabel: bool,
    #[serde(default)]
    pub propagation: PropagationJson,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uid_mappings: Vec<Object<IdMappingJson>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gid_mappings: Vec<Object<IdMappingJson>>,
    #[serde(default, alias = "recursive_read_only", skip_serializing_if = "is_false")]
    pub recursive_read_only: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Object<ImageJson>>,
    #[serde(default, alias = "image_sub_path", skip_serializing_if = "String::is_empty")]
    pub image_sub_path: String,
    #[serde(default, alias = "mount_options", skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PropagationJson {
    #[default]
    #[serde(rename = "PROPAGATION_PRIVATE")]
    Private,
    #[serde(rename = "PROPAGATION_HOST_TO_CONTAINER")]
    HostToContainer,
    #[serde(rename = "PROPAGATION_BIDIRECTIONAL")]
    Bidirectional,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IdMappingJson {
    #[serde(alias = "host_id")]
    pub host_id: u32,
    #[serde(alias = "container_id")]
    pub container_id: u32,
    pub length: u32,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageJson {
    pub image: String,
    #[serde(default, deserialize_with = "each_once", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(default, alias = "user_specified_image", skip_serializing_if = "String::is_empty")]
    pub user_specified_image: String,
    #[serde(default, alias = "runtime_handler", skip_serializing_if = "String::is_empty")]
    pub runtime_handler: String,
}

/// A JSON object. serde also reads a struct from an array of its values; this type rejects that.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct InBraces<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for InBraces<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }

        from.deserialize_map(InBraces(PhantomData)).map(Self)
    }
}

impl<'a, S, T: From<&'a S>> From<&'a S> for Object<T> {
    fn from(source: &'a S) -> Self {
        Self(T::from(source))
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Reads a map and rejects duplicate keys; serde would silently keep the last one.
fn each_once<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct EachOnce;

    impl<'de> Visitor<'de> for EachOnce {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with string values")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut all = BTreeMap::new();
            while let Some((name, text)) = entries.next_entry::<String, String>()? {
                if all.contains_key(&name) {
                    return Err(A::Error::custom(format_args!("duplicate key {name:?}")));
                }
                all.insert(name, text);
            }
            Ok(all)
        }
    }

    from.deserialize_map(EachOnce)
}

impl From<&PodResourceConfig> for PodJson {
    fn from(announced: &PodResourceConfig) -> Self {
        let PodResourceConfig { containers, resources, source: _ } = announced;
        Self {
            containers: containers.iter().map(Object::from).collect(),
            kubernetes_resources: resources.as_ref().map(Object::from),
        }
    }
}

impl From<&ContainerResourceConfig> for ContainerJson {
    fn from(announced: &ContainerResourceConfig) -> Self {
        let ContainerResourceConfig { name, kind, resources, mounts, devices, cdi_devices } = announced;
        Self {
            name: name.clone(),
            kind: match kind {
                ContainerKind::Init => KindJson::InitContainer,
                ContainerKind::Regular => KindJson::Container,
            },
            kubernetes_resources: resources.as_ref().map(Object::from),
            mounts: mounts.iter().map(Object::from).collect(),
            devices: devices.iter().map(Object::from).collect(),
            cdi_devices: cdi_devices.iter().map(|name| Object(CdiJson { name: name.clone() })).collect(),
        }
    }
}

impl From<&Resources> for ResourcesJson {
    fn from(Resources { requests, limits }: &Resources) -> Self {
        let texts =
            |amounts: &ResourceList| amounts.iter().map(|(name, one)| (name.to_string(), one.to_string())).collect();
        Self { requests: texts(requests), limits: texts(limits) }
    }
}

impl From<&Device> for DeviceJson {
    fn from(Device { container_path, host_path, permissions }: &Device) -> Self {
        Self {
            container_path: container_path.clone(),
            host_path: host_path.display().to_string(),
            permissions: permissions.clone(),
        }
    }
}

impl From<&Mount> for MountJson {
    fn from(mount: &Mount) -> Self {
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
            MountSource::Host(path) => (path.display().to_string(), None, String::new()),
            MountSource::Image { image, sub_path } => (String::new(), Some(Object::from(image)), sub_path.clone()),
        };
        Self {
            container_path: container_path.clone(),
            host_path,
            readonly: *readonly,
            selinux_relabel: *selinux_relabel,
            propagation: match propagation {
                Propagation::Private => PropagationJson::Private,
                Propagation::HostToContainer => PropagationJson::HostToContainer,
                Propagation::Bidirectional => PropagationJson::Bidirectional,
            },
            uid_mappings: uid_mappings.iter().map(Object::from).collect(),
            gid_mappings: gid_mappings.iter().map(Object::from).collect(),
            recursive_read_only: *recursive_read_only,
            image,
            image_sub_path,
            mount_options: options.clone(),
        }
    }
}

impl From<&IdMapping> for IdMappingJson {
    fn from(&IdMapping { host, container, length }: &IdMapping) -> Self {
        Self { host_id: host, container_id: container, length }
    }
}

impl From<&ImageName> for ImageJson {
    fn from(ImageName { image, user_specified, annotations, handler }: &ImageName) -> Self {
        Self {
            image: image.clone(),
            annotations: annotations.clone(),
            user_specified_image: user_specified.clone(),
            runtime_handler: handler.clone(),
        }
    }
}
