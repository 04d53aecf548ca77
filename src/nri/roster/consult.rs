//! Calls whose failure can fail the request.

use std::sync::Arc;

use super::turn::close_malformed;
use super::{RequestError, Turn};
use crate::api::{Container, Event, PodSandbox, UpdatePodSandboxRequest};
use crate::plugin::{Ask, Session};
use crate::wire::{CallError, Shape, decode};

impl Turn {
    /// Sends RunPodSandbox. On an error the plugins that were called get StopPodSandbox and
    /// RemovePodSandbox.
    pub async fn run_pod(&self, pod: &Arc<PodSandbox>) -> Result<(), RequestError> {
        let outcome = self.event(Event::RunPodSandbox, pod, None).await;
        if outcome.is_err() {
            self.undo_pod(pod);
        }
        outcome
    }

    /// Sends StartContainer, before the program of the container runs.
    pub async fn start_container(&self, pod: &Arc<PodSandbox>, container: &Arc<Container>) -> Result<(), RequestError> {
        self.event(Event::StartContainer, pod, Some(container)).await
    }

    /// Sends UpdatePodSandbox, before anything changes.
    pub async fn update_pod(&self, request: UpdatePodSandboxRequest) -> Result<(), RequestError> {
        let ask = Ask::UpdatePod(Arc::new(request));
        for session in &self.sessions {
            self.call(session, ask.clone()).await?;
        }
        Ok(())
    }

    async fn event(
        &self,
        event: Event,
        pod: &Arc<PodSandbox>,
        container: Option<&Arc<Container>>,
    ) -> Result<(), RequestError> {
        for session in &self.sessions {
            let ask = Ask::Event { event, pod: pod.clone(), container: container.cloned() };
            self.call(session, ask).await?;
        }
        Ok(())
    }

    /// Makes one call. Returns `None` if the plugin does not subscribe to it, or failed and is not
    /// required.
    pub(super) async fn call(&self, session: &Session, ask: Ask) -> Result<Option<Vec<u8>>, RequestError> {
        if !session.has(ask.event()) {
            return Ok(None);
        }
        let method = ask.method();
        match session.enqueue(ask, self.traceparent.clone()).answer().await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => self.failed(session, method, error).map(|()| None),
        }
    }

    /// Makes one call, and decodes its answer.
    pub(super) async fn call_for<A: prost::Message + Default>(
        &self,
        session: &Session,
        ask: Ask,
        shape: &Shape,
    ) -> Result<Option<A>, RequestError> {
        let method = ask.method();
        let Some(answer) = self.call(session, ask).await? else { return Ok(None) };
        match decode(&answer, shape) {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => {
                close_malformed(session, &error);
                self.failed(session, method, error).map(|()| None)
            }
        }
    }

    /// Decides whether a failed call fails the request: an error of the plugin's handler does, and
    /// every failure of a required plugin.
    fn failed(&self, session: &Session, method: &'static str, source: CallError) -> Result<(), RequestError> {
        let identity = &session.plugin().identity;
        let plugin = identity.to_string();
        if matches!(source, CallError::Refused { .. }) {
            return Err(RequestError::Refused { plugin, method, source });
        }
        if self.required.contains(identity.name()) {
            return Err(RequestError::Required { plugin, method, source });
        }
        tracing::warn!(%plugin, method, error = %source, "the request continues without the plugin");
        Ok(())
    }
}
