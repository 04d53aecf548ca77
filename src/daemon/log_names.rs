//! The names of pods and containers in log lines and spans.
//!
//! A line about a pod has its namespace, name and uid beside its ID; a line about a container has
//! its name too. They are fields of the span around the line: of the request, or of a span for work
//! in the background. So each line inside has them, and no line repeats them.

use model::PodMeta;
use tracing::Span;

use crate::store::{ContainerRecord, PodRecord};

/// Maximum bytes of a name in the log. Kubernetes permits 253; other clients may send anything.
const NAME_MAX: usize = 253;

/// The names that are known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogNames<'a> {
    namespace: Option<&'a str>,
    pod_name: Option<&'a str>,
    pod_uid: Option<&'a str>,
    container_name: Option<&'a str>,
    pod: Option<&'a str>,
    container: Option<&'a str>,
}

impl<'a> LogNames<'a> {
    /// Returns the names of a pod without its ID.
    pub(crate) fn of_meta(namespace: &'a str, name: &'a str, uid: &'a str) -> Self {
        Self { namespace: Some(namespace), pod_name: Some(name), pod_uid: Some(uid), ..Self::default() }
    }

    pub(crate) fn of_pod(pod: &'a PodRecord) -> Self {
        let PodMeta { name, uid, namespace, attempt: _ } = &pod.spec.meta;
        Self::of_meta(namespace, name, uid).with_pod_id(pod.id.as_str())
    }

    /// `pod` is the container's pod, if it has a record.
    pub(crate) fn of_container(container: &'a ContainerRecord, pod: Option<&'a PodRecord>) -> Self {
        pod.map(Self::of_pod)
            .unwrap_or_default()
            .with_pod_id(container.pod.as_str())
            .with_container_name(&container.spec.meta.name)
            .with_container_id(container.id.as_str())
    }

    pub(crate) fn with_pod_id(self, id: &'a str) -> Self {
        Self { pod: Some(id), ..self }
    }

    pub(crate) fn with_container_name(self, name: &'a str) -> Self {
        Self { container_name: Some(name), ..self }
    }

    pub(crate) fn with_container_id(self, id: &'a str) -> Self {
        Self { container: Some(id), ..self }
    }

    /// Adds the names to the span of the request. A field must be added only once: the text format
    /// repeats it.
    pub(crate) fn record(self) {
        let Self { namespace, pod_name, pod_uid, container_name, pod, container } = self.bounded();
        tracing::record_all!(
            Span::current(),
            namespace = namespace,
            pod_name = pod_name,
            pod_uid = pod_uid,
            container_name = container_name,
            pod = pod,
            container = container
        );
    }

    /// Returns a span with the names, for work that belongs to no request about this pod.
    pub(crate) fn span(self) -> Span {
        let Self { namespace, pod_name, pod_uid, container_name, pod, container } = self.bounded();
        // At level error the span is part of every log line, whatever the log level.
        match container {
            Some(_) => tracing::error_span!("container", namespace, pod_name, pod_uid, container_name, pod, container),
            None => tracing::error_span!("pod", namespace, pod_name, pod_uid, pod),
        }
    }

    /// Returns a span with the names for an event of a container, outside of all other spans.
    pub(crate) fn event_span(self) -> Span {
        let Self { namespace, pod_name, pod_uid, container_name, pod, container } = self.bounded();
        tracing::error_span!(
            parent: None, "container", namespace, pod_name, pod_uid, container_name, pod, container
        )
    }

    fn bounded(self) -> Self {
        let end =
            |name: &str| (0..=NAME_MAX.min(name.len())).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
        let bounded = |name: Option<&'a str>| name.map(|name| &name[..end(name)]);
        Self {
            namespace: bounded(self.namespace),
            pod_name: bounded(self.pod_name),
            pod_uid: bounded(self.pod_uid),
            container_name: bounded(self.container_name),
            pod: bounded(self.pod),
            container: bounded(self.container),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_cut_at_a_character() {
        let long = "ä".repeat(200);
        let names = LogNames::of_meta(&long, "web", "").bounded();
        assert_eq!((names.namespace.unwrap().len(), names.pod_name), (252, Some("web")));
    }
}
