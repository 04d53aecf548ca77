//! The annotation that declares a pod's resources (KEP-4112), for clients without the field.
//!
//! It is read as the message, so that it is checked in the same way.

use cri_api::json::Object;
use cri_api::v1;
use model::PodSpec;
use model::pod_resources::{PodResourceConfig, QualifiedName, Source};

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
    let Object(parsed): Object<v1::PodResourceConfig> = serde_json::from_str(text).map_err(|e| here.invalid(e))?;
    let announced = pod_resource_config(here, Some(parsed), warnings)?;
    if pod.pod_resources.is_some() {
        warnings.push(format!("{here}: ignored, because {} is set", at.at("pod_resources")));
    } else {
        pod.pod_resources = announced.map(|announced| PodResourceConfig { source: Source::Annotation, ..announced });
    }
    Ok(())
}

#[cfg(test)]
#[path = "annotation_tests.rs"]
mod tests;
