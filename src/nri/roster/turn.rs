//! A request of the client, and the plugins at its begin.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Inner;
use crate::api::{Container, Event, PodSandbox, StopContainerResponse};
use crate::merge::{Eviction, Update, Updates};
use crate::plugin::{Ask, Session, Waiting};
use crate::wire::{ANSWER_WITH_UPDATES, CloseReason, decode};

/// A request. It is held until the record of the pod or container is changed.
#[derive(Debug)]
pub struct Turn {
    pub(super) inner: Arc<Inner>,
    pub(super) sessions: Vec<Arc<Session>>,
    pub(super) required: BTreeSet<String>,
    pub(super) traceparent: Option<Arc<str>>,
    number: u64,
}

impl Turn {
    pub(super) fn begin(inner: Arc<Inner>) -> Self {
        let mut state = inner.state.lock();
        let number = state.next_turn;
        state.next_turn += 1;
        state.open_turns.insert(number);
        let open = state.sessions.iter().filter(|session| !session.plugin().connection.is_closed());
        let sessions = open.cloned().collect();
        drop(state);
        Self { inner, sessions, required: BTreeSet::new(), traceparent: None, number }
    }

    pub(super) fn with_required(mut self, required: BTreeSet<String>) -> Self {
        self.required = required;
        self
    }

    /// Sends the trace context of the request with each call.
    #[must_use]
    pub fn with_trace(mut self, traceparent: &str) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// Returns whether no plugin is connected, so that all calls do nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Returns whether a plugin subscribes to the event.
    #[must_use]
    pub fn has(&self, event: Event) -> bool {
        self.sessions.iter().any(|session| session.has(event))
    }

    /// Returns the required plugins that are not connected.
    pub(super) fn missing(&self) -> Vec<String> {
        let is_there = |name: &&String| self.sessions.iter().any(|session| session.plugin().identity.name() == **name);
        self.required.iter().filter(|name| !is_there(name)).cloned().collect()
    }

    /// Sends an event whose answer does not matter, to all plugins at once. The calls are in the
    /// queues of the plugins when this returns; an error is logged.
    pub fn notify(&self, event: Event, pod: &Arc<PodSandbox>, container: Option<&Arc<Container>>) {
        for session in self.sessions.iter().filter(|session| session.has(event)) {
            let ask = Ask::Event { event, pod: pod.clone(), container: container.cloned() };
            let waiting = session.enqueue(ask.clone(), self.traceparent.clone());
            let session = session.clone();
            tokio::spawn(async move {
                if let Err(error) = waiting.answer().await {
                    let plugin = &session.plugin().identity;
                    tracing::warn!(%plugin, method = ask.method(), %error, "the plugin failed an event");
                }
            });
        }
    }

    /// Sends StopContainer to all plugins, for a container that has ended. The calls are in the
    /// queues of the plugins when this returns; the answers may change other containers.
    #[must_use]
    pub fn stop_container(&self, pod: &Arc<PodSandbox>, container: &Arc<Container>) -> Stopping {
        let event = Event::StopContainer;
        let calls = self.sessions.iter().filter(|session| session.has(event)).map(|session| {
            let ask = Ask::Event { event, pod: pod.clone(), container: Some(container.clone()) };
            (session.clone(), session.enqueue(ask, self.traceparent.clone()))
        });
        Stopping { calls: calls.collect(), inner: self.inner.clone() }
    }

    /// Undoes the calls of a pod that was not created: sends StopPodSandbox and RemovePodSandbox.
    pub fn undo_pod(&self, pod: &Arc<PodSandbox>) {
        self.notify(Event::StopPodSandbox, pod, None);
        self.notify(Event::RemovePodSandbox, pod, None);
    }

    /// Undoes the calls of a container that was not created: sends StopContainer and
    /// RemoveContainer.
    pub fn undo_container(&self, pod: &Arc<PodSandbox>, container: &Arc<Container>) {
        self.notify(Event::StopContainer, pod, Some(container));
        self.notify(Event::RemoveContainer, pod, Some(container));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        let is_oldest = state.open_turns.first() == Some(&self.number);
        state.open_turns.remove(&self.number);
        drop(state);
        // Plugins that join wait for the oldest turn.
        if is_oldest {
            super::count(&self.inner.turns_ended);
        }
    }
}

/// The answers to StopContainer.
#[derive(Debug)]
pub struct Stopping {
    calls: Vec<(Arc<Session>, Waiting)>,
    inner: Arc<Inner>,
}

impl Stopping {
    /// Waits for the answers, and returns their changes of other containers: none if a plugin
    /// failed, as containerd and CRI-O do. Errors are logged.
    pub async fn updates(self) -> Vec<Update> {
        let settings = self.inner.settings();
        let mut updates = Updates::default();
        let mut failed = false;
        for (session, waiting) in self.calls {
            let identity = &session.plugin().identity;
            let allow = settings.allow(identity.name());
            let answer = waiting.answer().await;
            let answer = answer.and_then(|answer| decode::<StopContainerResponse>(&answer, &ANSWER_WITH_UPDATES));
            let error = match answer {
                Ok(answer) => updates.add(&identity.to_string(), &allow, answer.update).err().map(|e| e.to_string()),
                Err(error) => {
                    close_malformed(&session, &error);
                    Some(error.to_string())
                }
            };
            if let Some(error) = error {
                failed = true;
                tracing::warn!(plugin = %identity, method = "StopContainer", %error, "the plugin failed an event");
            }
        }
        let (updates, _): (_, Vec<Eviction>) = updates.finish();
        if failed { Vec::new() } else { updates }
    }
}

/// Closes the connection of a plugin whose answer cannot be decoded.
pub(super) fn close_malformed(session: &Session, error: &crate::wire::CallError) {
    use crate::wire::CallError as E;
    if matches!(error, E::Malformed(_) | E::TooManyFields) {
        session.plugin().connection.close(CloseReason::ByRuntime(error.to_string()));
    }
}
