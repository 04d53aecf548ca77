//! Whether a container is what was announced when its pod was made (KEP-4112).

use std::fmt;

use config::MismatchPolicy;
use model::error_chain::chain;
use model::pod_resources::{Difference, PodResourceConfig, Source};
use model::{ContainerSpec, ErrorClass, ErrorKind};
use oci::pod_resources_json;
use oci_spec::runtime::Spec;

use crate::runtime::Runtime;
use crate::store::{ContainerRecord, PodRecord};

/// A container that is not what was announced.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the container is not as announced with its pod: {0}")]
pub(crate) struct ResourceMismatch(Differences);

impl ErrorClass for ResourceMismatch {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Precondition
    }
}

/// Never empty.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Differences(Vec<Difference>);

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// More are only counted: the text has to fit into the header of an answer.
        const TOLD: usize = 16;
        for (index, difference) in self.0.iter().take(TOLD).enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}config.{difference}")?;
        }
        match self.0.len().checked_sub(TOLD) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "; and {more} more"),
        }
    }
}

/// Gives the container what its pod's annotation says of it, where it says nothing itself, and compares it with what was
/// announced. What may be told of is handed back.
pub(crate) fn check(
    policy: MismatchPolicy,
    announced: Option<&PodResourceConfig>,
    spec: &mut ContainerSpec,
) -> Result<Option<Differences>, ResourceMismatch> {
    let Some(announced) = announced else { return Ok(None) };
    let differences = match announced.of(spec) {
        Some(container) => {
            if announced.source == Source::Annotation && spec.kubernetes_resources.is_none() {
                spec.kubernetes_resources.clone_from(&container.resources);
            }
            container.differences(spec)
        }
        None => vec![Difference::undeclared_container(spec)],
    };
    match policy {
        _ if differences.is_empty() => Ok(None),
        MismatchPolicy::Warn => Ok(Some(Differences(differences))),
        MismatchPolicy::Refuse => Err(ResourceMismatch(Differences(differences))),
    }
}

impl Runtime {
    /// Brings what hooks are told of a container up to date. They are told once more, no more than that: where it fails,
    /// they are told what was true before.
    pub(crate) fn rewrite_resource_annotations(&self, pod: &PodRecord, container: &ContainerRecord) {
        let path = self.layout.container(&container.pod, &container.id).join("config.json");
        let resources = container.spec.kubernetes_resources.as_ref();
        let told = safe_fs::read_json::<Spec>(&path).map_err(|e| chain(&e)).and_then(|spec| match spec {
            Some(mut spec) => {
                pod_resources_json::update_annotations(&mut spec, pod.spec.pod_resources.as_ref(), resources)
                    .map_err(|e| e.to_string())?;
                safe_fs::write_json(&path, &spec).map_err(|e| chain(&e))
            }
            None => Ok(()),
        });
        if let Err(error) = told {
            tracing::warn!(container = %container.id, error, "hooks are told of resources as they were");
        }
    }
}

#[cfg(test)]
#[path = "pod_resources_check_tests.rs"]
mod tests;
