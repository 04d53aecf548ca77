//! Compares a container with the pod resources declared in RunPodSandbox (KEP-4112).

use std::fmt;

use config::MismatchPolicy;
use model::error_chain::chain;
use model::pod_resources::{Difference, PodResourceConfig, Source};
use model::{ContainerSpec, ErrorClass, ErrorKind};
use oci::pod_resources_json;
use oci_spec::runtime::Spec;

use crate::runtime::Runtime;
use crate::store::ContainerRecord;

/// A container that differs from its declaration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the container differs from the pod resources in RunPodSandbox or the pod's annotation, which resources.mismatch refuses: {0}"
)]
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
        /// Further differences are only counted, since the text must fit into a response header.
        const TOLD: usize = 16;
        for (index, difference) in self.0.iter().take(TOLD).enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}{difference}")?;
        }
        match self.0.len().checked_sub(TOLD) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "; and {more} more"),
        }
    }
}

/// Fills fields that the request leaves empty from the pod's annotation, and compares the request
/// with the declaration. Returns differences that are to be logged.
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
    /// Updates the resource annotations in `config.json` before the poststart hooks read them: they may
    /// have changed since the container was created. A failure leaves the old ones.
    pub(crate) fn refresh_resource_annotations(&self, container: &ContainerRecord) {
        let path = self.layout.container(&container.pod, &container.id).join("config.json");
        let refreshed = safe_fs::read_json::<Spec>(&path).map_err(|e| chain(&e)).and_then(|found| match found {
            Some(spec) if has_poststart(&spec) => {
                let mut current = spec.clone();
                self.set_resource_annotations(&mut current, container);
                if current == spec {
                    Ok(())
                } else {
                    safe_fs::write_readable_json(&path, &current).map_err(|e| chain(&e))
                }
            }
            Some(_) | None => Ok(()),
        });
        if let Err(error) = refreshed {
            tracing::warn!(container = %container.id, error, "cannot update the pod resources for poststart hooks; the hooks see those from the container's creation");
        }
    }

    /// Sets the annotations with the current resources of the container and its pod.
    pub(crate) fn set_resource_annotations(&self, spec: &mut Spec, container: &ContainerRecord) {
        let pod = self.pod(container.pod.as_str()).ok();
        let declared = pod.as_ref().and_then(|pod| pod.spec.pod_resources.as_ref());
        pod_resources_json::update_annotations(spec, declared, container.spec.kubernetes_resources.as_ref());
    }
}

fn has_poststart(spec: &Spec) -> bool {
    spec.hooks().as_ref().and_then(|hooks| hooks.poststart().as_ref()).is_some_and(|hooks| !hooks.is_empty())
}

#[cfg(test)]
#[path = "pod_resources_check_tests.rs"]
mod tests;
