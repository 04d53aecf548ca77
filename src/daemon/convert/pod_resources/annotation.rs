//! The annotation that declares a pod's resources (KEP-4112), for clients without the field.
//!
//! It is converted to the message first, so that it is checked in the same way.

use cri_api::v1;
use cri_api::v1::container_resource_config::ContainerType;
use model::PodSpec;
use model::pod_resources::{PodResourceConfig, QualifiedName, Source};
use oci::pod_resources_json::{
    CdiJson, ContainerJson, DeviceJson, IdMappingJson, ImageJson, KindJson, MountJson, Object, PodJson,
    PropagationJson, ResourcesJson,
};

use super::{entry, pod_resource_config};
use crate::convert::{FieldPath, InvalidField, Warnings};

/// Uses the annotation `name` for the pod's resources, unless the request has the field, at `at`.
pub(crate) fn apply_annotation(
    at: FieldPath<'_>,
    name: &QualifiedName,
    pod: &mut PodSpec,
    warnings: &mut Warnings,
) -> Result<(), InvalidField> {
    let Some(text) = pod.annotations.get(name.as_str()) else { return Ok(()) };
    let field = entry("annotations", name.as_str());
    let here = at.at(&field);
    let Object(parsed) = serde_json::from_str(text).map_err(|e| here.invalid(e))?;
    let announced = pod_resource_config(here, Some(pod_to_wire(parsed)), warnings)?;
    if pod.pod_resources.is_some() {
        warnings.push(format!("{here}: ignored, because {} is set", at.at("pod_resources")));
    } else {
        pod.pod_resources = announced.map(|announced| PodResourceConfig { source: Source::Annotation, ..announced });
    }
    Ok(())
}

fn pod_to_wire(PodJson { containers, kubernetes_resources }: PodJson) -> v1::PodResourceConfig {
    v1::PodResourceConfig {
        containers: containers.into_iter().map(|Object(one)| container_to_wire(one)).collect(),
        kubernetes_resources: kubernetes_resources.map(|Object(one)| resources_to_wire(one)),
    }
}

fn container_to_wire(container: ContainerJson) -> v1::ContainerResourceConfig {
    let ContainerJson { name, kind, kubernetes_resources, mounts, devices, cdi_devices } = container;
    let kind = match kind {
        KindJson::InitContainer => ContainerType::InitContainer,
        KindJson::Container => ContainerType::Container,
    };
    v1::ContainerResourceConfig {
        name,
        r#type: kind.into(),
        kubernetes_resources: kubernetes_resources.map(|Object(one)| resources_to_wire(one)),
        mounts: mounts.into_iter().map(|Object(one)| mount_to_wire(one)).collect(),
        devices: devices.into_iter().map(|Object(one)| device_to_wire(one)).collect(),
        cdi_devices: cdi_devices.into_iter().map(|Object(CdiJson { name })| v1::CdiDevice { name }).collect(),
    }
}

fn resources_to_wire(ResourcesJson { requests, limits }: ResourcesJson) -> v1::KubernetesResources {
    let quantity = |(name, string)| (name, cri_api::Quantity { string });
    v1::KubernetesResources {
        requests: requests.into_iter().map(quantity).collect(),
        limits: limits.into_iter().map(quantity).collect(),
    }
}

fn device_to_wire(DeviceJson { container_path, host_path, permissions }: DeviceJson) -> v1::Device {
    v1::Device { container_path, host_path, permissions }
}

fn mount_to_wire(mount: MountJson) -> v1::Mount {
    let MountJson {
        container_path,
        host_path,
        readonly,
        selinux_relabel,
        propagation,
        uid_mappings,
        gid_mappings,
        recursive_read_only,
        image,
        image_sub_path,
        mount_options,
    } = mount;
    let propagation = match propagation {
        PropagationJson::Private => v1::MountPropagation::PropagationPrivate,
        PropagationJson::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
        PropagationJson::Bidirectional => v1::MountPropagation::PropagationBidirectional,
    };
    v1::Mount {
        container_path,
        host_path,
        readonly,
        selinux_relabel,
        propagation: propagation.into(),
        uid_mappings: uid_mappings.into_iter().map(|Object(one)| mapping_to_wire(one)).collect(),
        gid_mappings: gid_mappings.into_iter().map(|Object(one)| mapping_to_wire(one)).collect(),
        recursive_read_only,
        image: image.map(|Object(one)| image_to_wire(one)),
        image_sub_path,
        mount_options,
    }
}

fn mapping_to_wire(IdMappingJson { host_id, container_id, length }: IdMappingJson) -> v1::IdMapping {
    v1::IdMapping { host_id, container_id, length }
}

fn image_to_wire(image: ImageJson) -> v1::ImageSpec {
    let ImageJson { image, annotations, user_specified_image, runtime_handler } = image;
    v1::ImageSpec { image, annotations, user_specified_image, runtime_handler, image_ref: String::new() }
}

#[cfg(test)]
#[path = "annotation_tests.rs"]
mod tests;
