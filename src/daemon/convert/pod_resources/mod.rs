//! Requests and limits of a pod spec, and the declared resources of a pod (KEP-4112).

pub(crate) mod annotation;

use std::collections::{BTreeMap, BTreeSet};

use cri_api::v1;
use cri_api::v1::container_resource_config::ContainerType;
use model::InvalidQuantity;
use model::pod_resources::{
    ContainerKind, ContainerResourceConfig, InvalidName, PodResourceConfig, ResourceList, Resources, Source,
};

use super::container::each;
use super::{FieldPath, InvalidField, Warnings, mount};

/// Returns requests and limits; `None` without the message, which is different from an empty one.
pub(super) fn resources(
    at: FieldPath<'_>,
    asked: Option<v1::KubernetesResources>,
) -> Result<Option<Resources>, InvalidField> {
    let Some(v1::KubernetesResources { requests, limits }) = asked else { return Ok(None) };
    let resources =
        Resources { requests: resource_list(at, "requests", requests)?, limits: resource_list(at, "limits", limits)? };
    for (name, request) in &resources.requests {
        if let Some(limit) = resources.limits.get(name).filter(|limit| request > *limit) {
            let field = entry("requests", name.as_str());
            return Err(at.at(&field).invalid(format_args!("{request} exceeds the limit of {limit}")));
        }
    }
    Ok(Some(resources))
}

/// Returns the declared resources of a pod; `None` without the message.
pub(super) fn pod_resource_config(
    at: FieldPath<'_>,
    asked: Option<v1::PodResourceConfig>,
    warnings: &mut Warnings,
) -> Result<Option<PodResourceConfig>, InvalidField> {
    let Some(v1::PodResourceConfig { containers, kubernetes_resources }) = asked else { return Ok(None) };
    let list = at.at("containers");
    let containers = each(list, containers, |at, config| container(at, config, warnings))?;
    let (mut inits, mut regulars) = (BTreeSet::new(), BTreeSet::new());
    for (index, container) in containers.iter().enumerate() {
        let (name, kind) = (&container.name, container.kind);
        let names = match kind {
            ContainerKind::Init => &mut inits,
            ContainerKind::Regular => &mut regulars,
        };
        if !names.insert(name) {
            return Err(list.entry(index).at("name").invalid(format_args!("duplicate {kind} {name:?}")));
        }
    }
    let resources = resources(at.at("kubernetes_resources"), kubernetes_resources)?;
    Ok(Some(PodResourceConfig { containers, resources, source: Source::Request }))
}

fn container(
    at: FieldPath<'_>,
    config: v1::ContainerResourceConfig,
    warnings: &mut Warnings,
) -> Result<ContainerResourceConfig, InvalidField> {
    let v1::ContainerResourceConfig { name, r#type, kubernetes_resources, mounts, devices, cdi_devices } = config;
    Ok(ContainerResourceConfig {
        name: at.at("name").filled(name)?,
        kind: match at.at("type").known(r#type)? {
            ContainerType::InitContainer => ContainerKind::Init,
            ContainerType::Container => ContainerKind::Regular,
        },
        resources: resources(at.at("kubernetes_resources"), kubernetes_resources)?,
        mounts: each(at.at("mounts"), mounts, |at, mount| mount::mount(at, mount, warnings))?,
        devices: each(at.at("devices"), devices, mount::device)?,
        cdi_devices: each(at.at("CDI_devices"), cdi_devices, mount::cdi_device)?,
    })
}

fn resource_list(
    at: FieldPath<'_>,
    list: &str,
    asked: BTreeMap<String, cri_api::Quantity>,
) -> Result<ResourceList, InvalidField> {
    let amount = |(name, cri_api::Quantity { string: text }): (String, cri_api::Quantity)| {
        let field = entry(list, &name);
        let at = at.at(&field);
        let name = name.parse().map_err(|e: InvalidName| at.invalid(e))?;
        Ok((name, text.parse().map_err(|e: InvalidQuantity| at.invalid(e))?))
    };
    asked.into_iter().map(amount).collect()
}

/// Returns requests and limits as the client sent them.
pub fn resources_to_wire(resources: &Resources) -> v1::KubernetesResources {
    let amounts = |amounts: &ResourceList| {
        let texts = amounts.iter().map(|(name, amount)| (name.as_str().to_owned(), amount.as_str().to_owned()));
        texts.map(|(name, string)| (name, cri_api::Quantity { string })).collect()
    };
    let Resources { requests, limits } = resources;
    v1::KubernetesResources { requests: amounts(requests), limits: amounts(limits) }
}

/// Returns the declared resources of a pod as the client sent them.
pub fn pod_resource_config_to_wire(announced: &PodResourceConfig) -> v1::PodResourceConfig {
    let PodResourceConfig { containers, resources, source: _ } = announced;
    let container = |container: &ContainerResourceConfig| {
        let ContainerResourceConfig { name, kind, resources, mounts, devices, cdi_devices } = container;
        let kind = match kind {
            ContainerKind::Init => ContainerType::InitContainer,
            ContainerKind::Regular => ContainerType::Container,
        };
        v1::ContainerResourceConfig {
            name: name.clone(),
            r#type: kind.into(),
            kubernetes_resources: resources.as_ref().map(resources_to_wire),
            mounts: mounts.iter().map(|mount| mount::mount_to_wire(mount, &BTreeMap::new())).collect(),
            devices: devices.iter().map(mount::device_to_wire).collect(),
            cdi_devices: cdi_devices.iter().map(|name| v1::CdiDevice { name: name.clone() }).collect(),
        }
    };
    v1::PodResourceConfig {
        containers: containers.iter().map(container).collect(),
        kubernetes_resources: resources.as_ref().map(resources_to_wire),
    }
}

/// Returns the path of an entry of a map.
pub(super) fn entry(map: &str, key: &str) -> String {
    format!("{map}[{key:?}]")
}

#[cfg(test)]
mod tests;
