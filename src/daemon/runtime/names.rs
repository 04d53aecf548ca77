//! Finds the names of pods and containers for log lines and spans.

use model::{ContainerId, PodId};
use tracing::Span;

use super::Runtime;
use crate::log_names::LogNames;
use crate::store::{ContainerIntent, ContainerRecord, PodIntent, PodRecord, intent};

impl Runtime {
    /// Adds the names of the pod with this ID or prefix to the span of the request.
    pub(crate) fn record_pod_names(&self, id: &str) {
        if Span::current().is_disabled() {
            return;
        }
        match self.pods.find(id) {
            Ok(Some(pod)) => LogNames::of_pod(&pod.get()).record(),
            Ok(None) | Err(_) => LogNames::default().with_pod_id(id).record(),
        }
    }

    /// Adds the names of the container with this ID or prefix, and those of its pod.
    pub(crate) fn record_container_names(&self, id: &str) {
        if Span::current().is_disabled() {
            return;
        }
        match self.containers.find(id) {
            Ok(Some(container)) => {
                let container = container.get();
                LogNames::of_container(&container, self.pod(container.pod.as_str()).ok().as_deref()).record();
            }
            Ok(None) | Err(_) => LogNames::default().with_container_id(id).record(),
        }
    }

    /// Returns a span with the names of a pod, from its record or its intent.
    pub(crate) fn pod_span(&self, id: &PodId) -> Span {
        if let Ok(Some(pod)) = self.pods.find(id.as_str()) {
            return LogNames::of_pod(&pod.get()).span();
        }
        let known: PodIntent = intent::read(&self.pod_dir(id));
        let meta = known.meta.as_ref().map(|meta| LogNames::of_meta(&meta.namespace, &meta.name, &meta.uid));
        meta.unwrap_or_default().with_pod_id(id.as_str()).span()
    }

    /// Returns a span with the names of a container and its pod, from their records or intents.
    pub(crate) fn container_span(&self, pod: &PodId, id: &ContainerId) -> Span {
        if let Ok(Some(container)) = self.containers.find(id.as_str()) {
            return self.container_record_span(&container.get());
        }
        let known: ContainerIntent = intent::read(&self.layout.container(pod, id));
        let of_pod: PodIntent = match self.pod(pod.as_str()) {
            Ok(record) => PodIntent { meta: Some(record.spec.meta.clone()), ..PodIntent::default() },
            Err(_) => intent::read(&self.pod_dir(pod)),
        };
        let names = of_pod.meta.as_ref().map(|meta| LogNames::of_meta(&meta.namespace, &meta.name, &meta.uid));
        let names = names.unwrap_or_default().with_pod_id(pod.as_str()).with_container_id(id.as_str());
        match &known.meta {
            Some(meta) => names.with_container_name(&meta.name).span(),
            None => names.span(),
        }
    }

    pub(super) fn container_record_span(&self, container: &ContainerRecord) -> Span {
        LogNames::of_container(container, self.pod(container.pod.as_str()).ok().as_deref()).span()
    }

    pub(super) fn pod_record_span(pod: &PodRecord) -> Span {
        LogNames::of_pod(pod).span()
    }
}
