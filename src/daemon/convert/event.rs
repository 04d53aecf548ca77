//! Converts container events to responses of GetContainerEvents.

use cri_api::v1;

use super::status;
use crate::runtime::{ContainerSnapshot, Event, EventKind};

pub(crate) fn event(event: &Event) -> v1::ContainerEventResponse {
    let Event { id, kind, at, pod, containers } = event;
    let kind = match kind {
        EventKind::Created => v1::ContainerEventType::ContainerCreatedEvent,
        EventKind::Started => v1::ContainerEventType::ContainerStartedEvent,
        EventKind::Stopped => v1::ContainerEventType::ContainerStoppedEvent,
        EventKind::Deleted => v1::ContainerEventType::ContainerDeletedEvent,
    };
    v1::ContainerEventResponse {
        container_id: id.clone(),
        container_event_type: kind.into(),
        created_at: status::nanos(*at),
        pod_sandbox_status: pod.as_deref().map(status::pod),
        containers_statuses: statuses(containers),
    }
}

pub(crate) fn statuses(containers: &[ContainerSnapshot]) -> Vec<v1::ContainerStatus> {
    let status =
        |ContainerSnapshot { record, limits }: &ContainerSnapshot| status::container(record, limits.as_deref());
    containers.iter().map(status).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::support::{container_record, pod_record, time};
    use super::*;

    #[test]
    fn an_event_has_the_statuses_of_the_pod_and_of_its_containers() {
        let (pod, container) = (Arc::new(pod_record()), Arc::new(container_record()));
        let reported = |kind| {
            let containers = vec![ContainerSnapshot { record: container.clone(), limits: None }];
            event(&Event { id: "abc".to_owned(), kind, at: time(7), pod: Some(pod.clone()), containers })
        };
        let v1::ContainerEventResponse {
            container_id,
            container_event_type,
            created_at,
            pod_sandbox_status,
            containers_statuses,
        } = reported(EventKind::Stopped);
        assert_eq!((container_id.as_str(), container_event_type, created_at), ("abc", 2, status::nanos(time(7))));
        assert_eq!(pod_sandbox_status, Some(status::pod(&pod)));
        assert_eq!(containers_statuses, [status::container(&container, None)]);
        let kinds = [EventKind::Created, EventKind::Started, EventKind::Stopped, EventKind::Deleted];
        assert_eq!(kinds.map(|kind| reported(kind).container_event_type), [0, 1, 2, 3]);
    }

    #[test]
    fn an_event_of_a_removed_pod_has_no_pod_status() {
        let gone =
            Event { id: "abc".to_owned(), kind: EventKind::Deleted, at: time(7), pod: None, containers: Vec::new() };
        assert_eq!(event(&gone).pod_sandbox_status, None);
    }
}
