//! CreateContainer and UpdateContainer: the answers of all plugins, merged and validated.

use std::sync::Arc;

use super::{RequestError, Turn};
use crate::api::{
    Container, ContainerUpdate, CreateContainerResponse, Event, LinuxContainerUpdate, OwningPlugins, PluginInstance,
    PodSandbox, UpdateContainerRequest, UpdateContainerResponse, ValidateContainerAdjustmentRequest,
    ValidateContainerAdjustmentResponse,
};
use crate::merge::{Created, Creation, Resize, Resized, Update};
use crate::plugin::{Ask, Session};
use crate::wire::{ANSWER_TO_CREATE, ANSWER_WITH_UPDATES, FLAT};

impl Turn {
    /// Sends CreateContainer to each plugin in turn, merges the answers, and has the result
    /// validated. On an error all plugins get StopContainer and RemoveContainer. If the future is
    /// dropped, the caller sends them with [`Turn::undo_container`].
    pub async fn create_container(
        &self,
        pod: &Arc<PodSandbox>,
        container: &Arc<Container>,
    ) -> Result<Created, RequestError> {
        let outcome = self.created(pod, container).await;
        if outcome.is_err() {
            self.undo_container(pod, container);
        }
        outcome
    }

    async fn created(&self, pod: &Arc<PodSandbox>, container: &Arc<Container>) -> Result<Created, RequestError> {
        let settings = self.inner.settings();
        let mut creation = Creation::new((**container).clone());
        let mut consulted = Vec::new();
        let mut failed = Vec::new();
        for session in &self.sessions {
            let event = Event::CreateContainer;
            let shown = Some(Arc::new(creation.container().clone()));
            let ask = Ask::Event { event, pod: pod.clone(), container: shown };
            let answer = self.call_for::<CreateContainerResponse>(session, ask, &ANSWER_TO_CREATE).await?;
            let identity = &session.plugin().identity;
            if let Some(answer) = answer {
                creation.add(&identity.to_string(), &settings.allow(identity.name()), answer)?;
                let (name, index) = (identity.name().to_owned(), identity.index().to_owned());
                consulted.push(PluginInstance { name, index });
            } else if session.has(Event::CreateContainer) {
                failed.push(session.plugin().number);
            }
        }
        let created = creation.finish();
        settings.validator.check(container, &created.owners)?;
        if self.has(Event::ValidateContainerAdjustment) {
            self.validate(pod, container, &created, consulted, &failed).await?;
        }
        Ok(created)
    }

    /// Sends the merged adjustment to all validators at the same time, except those that `failed` in
    /// this request already.
    async fn validate(
        &self,
        pod: &Arc<PodSandbox>,
        container: &Arc<Container>,
        created: &Created,
        plugins: Vec<PluginInstance>,
        failed: &[u64],
    ) -> Result<(), RequestError> {
        let owners = [(container.id.clone(), created.owners.to_api())].into();
        let request = Arc::new(ValidateContainerAdjustmentRequest {
            pod: Some((**pod).clone()),
            container: Some((**container).clone()),
            adjust: Some(created.adjust.clone()),
            update: created.updates.iter().map(to_api).collect(),
            owners: Some(OwningPlugins { owners }),
            plugins,
        });
        let event = Event::ValidateContainerAdjustment;
        let asked: Vec<_> = self
            .sessions
            .iter()
            .filter(|session| session.has(event) && !failed.contains(&session.plugin().number))
            .map(|session| (session, session.enqueue(Ask::Validate(request.clone()), self.traceparent.clone())))
            .collect();
        for (session, waiting) in asked {
            let answer = waiting.answer().await;
            let answer = answer.and_then(|answer| crate::wire::decode(&answer, &FLAT));
            let ValidateContainerAdjustmentResponse { reject, reason } = answer.map_err(|source| {
                // A validator that does not answer rejects.
                RequestError::Refused { plugin: name(session), method: "ValidateContainerAdjustment", source }
            })?;
            if reject {
                let reason = reason.chars().filter(|c| !c.is_control()).take(1024).collect();
                return Err(RequestError::Rejected { plugin: name(session), reason });
            }
        }
        Ok(())
    }

    /// Sends UpdateContainer to each plugin in turn, and merges the answers: they replace the
    /// limits of the request. Nothing that a change of containers by a plugin needs may be locked.
    pub async fn update_container(&self, mut request: UpdateContainerRequest) -> Result<Resized, RequestError> {
        let settings = self.inner.settings();
        let id = request.container.as_ref().map(|container| container.id.clone()).unwrap_or_default();
        let mut resize = Resize::new(id, request.linux_resources.take().unwrap_or_default());
        for session in &self.sessions {
            if !session.has(Event::UpdateContainer) {
                continue;
            }
            let request = UpdateContainerRequest { linux_resources: Some(resize.resources()), ..request.clone() };
            let ask = Ask::UpdateContainer(Arc::new(request));
            let answer = self.call_for::<UpdateContainerResponse>(session, ask, &ANSWER_WITH_UPDATES).await?;
            if let Some(answer) = answer {
                let identity = &session.plugin().identity;
                resize.add(&identity.to_string(), &settings.allow(identity.name()), answer)?;
            }
        }
        Ok(resize.finish())
    }
}

fn name(session: &Session) -> String {
    session.plugin().identity.to_string()
}

fn to_api(update: &Update) -> ContainerUpdate {
    let resources = Some(Box::new(update.resources.clone()));
    ContainerUpdate {
        container_id: update.container_id.clone(),
        linux: Some(Box::new(LinuxContainerUpdate { resources })),
        ignore_failure: update.ignore_failure,
    }
}
