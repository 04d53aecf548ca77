//! Calls to a plugin.

use std::sync::Arc;

use prost::Message as _;

use crate::api::{
    Container, Event, PodSandbox, StateChangeEvent, UpdateContainerRequest, UpdatePodSandboxRequest,
    ValidateContainerAdjustmentRequest,
};
use crate::event::method;

/// The content of a call. Plugins share the messages, which are encoded when the call is sent.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    /// All requests with a pod, or with a pod and a container.
    Event {
        event: Event,
        pod: Arc<PodSandbox>,
        container: Option<Arc<Container>>,
    },
    UpdatePod(Arc<UpdatePodSandboxRequest>),
    UpdateContainer(Arc<UpdateContainerRequest>),
    Validate(Arc<ValidateContainerAdjustmentRequest>),
}

impl Ask {
    pub(crate) fn event(&self) -> Event {
        match self {
            Self::Event { event, .. } => *event,
            Self::UpdatePod(_) => Event::UpdatePodSandbox,
            Self::UpdateContainer(_) => Event::UpdateContainer,
            Self::Validate(_) => Event::ValidateContainerAdjustment,
        }
    }

    pub(crate) fn method(&self) -> &'static str {
        method(self.event())
    }

    /// Returns the id of the container that the call is about.
    pub(crate) fn container(&self) -> Option<&str> {
        let container = match self {
            Self::Event { container, .. } => container.as_deref(),
            Self::UpdatePod(_) => None,
            Self::UpdateContainer(request) => request.container.as_ref(),
            Self::Validate(request) => request.container.as_ref(),
        };
        container.map(|container| container.id.as_str())
    }

    /// Returns the size of the encoded call.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Event { pod, container, .. } => {
                pod.encoded_len() + container.as_ref().map_or(0, |container| container.encoded_len())
            }
            Self::UpdatePod(request) => request.encoded_len(),
            Self::UpdateContainer(request) => request.encoded_len(),
            Self::Validate(request) => request.encoded_len(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Event { pod, container, .. } => {
                // Every request of an event has the pod as field 1, and the container as field 2.
                let mut bytes = Vec::with_capacity(self.size() + 16);
                prost::encoding::message::encode(1, &**pod, &mut bytes);
                if let Some(container) = container {
                    prost::encoding::message::encode(2, &**container, &mut bytes);
                }
                bytes
            }
            Self::UpdatePod(request) => request.encode_to_vec(),
            Self::UpdateContainer(request) => request.encode_to_vec(),
            Self::Validate(request) => request.encode_to_vec(),
        }
    }

    /// Returns the call for plugins older than v0.12.0.
    pub(crate) fn encode_state_change(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size() + 24);
        if let Self::Event { event, pod, container } = self {
            let change = StateChangeEvent { event: i32::from(*event), pod: None, container: None };
            bytes.extend(change.encode_to_vec());
            prost::encoding::message::encode(2, &**pod, &mut bytes);
            if let Some(container) = container {
                prost::encoding::message::encode(3, &**container, &mut bytes);
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::StartContainerRequest;

    #[test]
    fn an_event_is_encoded_as_its_request_and_as_a_state_change() {
        let pod = PodSandbox { id: "p".to_owned(), ..PodSandbox::default() };
        let container = Container { id: "c".to_owned(), pid: 7, ..Container::default() };
        let ask = Ask::Event {
            event: Event::StartContainer,
            pod: Arc::new(pod.clone()),
            container: Some(Arc::new(container.clone())),
        };
        let request = StartContainerRequest::decode(&ask.encode()[..]).unwrap();
        assert_eq!((request.pod.as_ref(), request.container.as_ref()), (Some(&pod), Some(&container)));
        let change = StateChangeEvent::decode(&ask.encode_state_change()[..]).unwrap();
        assert_eq!(change.event(), Event::StartContainer);
        assert_eq!((change.pod, change.container), (Some(pod), Some(container)));
        assert_eq!((ask.container(), ask.method()), (Some("c"), "StartContainer"));
    }
}
