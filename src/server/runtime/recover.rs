//! Going on where another daemon ended.

use std::path::Path;
use std::sync::Arc;

use link::{Answer, Ask};
use model::{ContainerId, Phase, PodId, PodPhase};
use tokio::sync::mpsc;

use super::{OpenError, Runtime, blocking};
use crate::shim::Client;
use crate::store::{ContainerRecord, PodRecord, VERSION, disk};

impl Runtime {
    /// Finds every pod and container that exists, asks their shims how they are, and clears away the rest: what was
    /// begun and never finished, and what a reboot left without its pod.
    pub(super) async fn recover(self: &Arc<Self>) -> Result<(), OpenError> {
        let mut unfinished = Vec::new();
        for name in disk::names_in(&self.layout.pods())? {
            let Ok(id) = PodId::try_from(name) else { continue };
            match read::<PodRecord>(&self.pod_dir(&id).join("pod.json"), |pod| pod.version) {
                Found::Record(record) => self.take_up(*record).await,
                Found::Nothing => unfinished.push(id),
                Found::Foreign => {}
            }
        }
        for id in unfinished {
            tracing::info!(pod = %id, "clearing away a pod that was never finished");
            self.clear_pod(&id).await;
        }
        self.sweep_layers().await;
        Ok(())
    }

    async fn take_up(self: &Arc<Self>, record: PodRecord) {
        let id = record.id.clone();
        let ready = record.phase == PodPhase::Ready;
        // Taken only once: two records with one name cannot have been written.
        if let Ok(name) = self.pod_names.reserve(record.spec.meta.clone(), id.as_str()) {
            name.keep();
        }
        let pod = self.pods.insert(record);
        let unfinished = self.load_containers(&id);
        if ready {
            let (sender, events) = mpsc::unbounded_channel();
            match Client::connect(&self.pod_dir(&id).join("shim.sock"), sender).await {
                Ok(shim) => {
                    self.hear_out(&shim).await;
                    self.attach(id.clone(), shim, events);
                }
                Err(error) => {
                    tracing::warn!(pod = %id, error = crate::chain::chain(&error), "the pod has lost its shim");
                    self.bury(&id).await;
                }
            }
        }
        for container in unfinished {
            tracing::info!(pod = %id, container = %container, "clearing away a container that was never finished");
            self.clear_container(&id, &container).await;
        }
        drop(pod);
    }

    /// Puts the containers of a pod on the books; returns those that were never finished.
    fn load_containers(&self, pod: &PodId) -> Vec<ContainerId> {
        let mut unfinished = Vec::new();
        for name in disk::names_in(&self.layout.containers(pod)).unwrap_or_default() {
            let Ok(id) = ContainerId::try_from(name) else { continue };
            let dir = self.layout.container(pod, &id);
            let record = match read::<ContainerRecord>(&dir.join("container.json"), |c| c.version) {
                Found::Record(record) => *record,
                Found::Nothing => {
                    unfinished.push(id);
                    continue;
                }
                Found::Foreign => continue,
            };
            let launch = disk::read_json::<link::Launch>(&link::Launch::path(&dir)).ok().flatten();
            let held = launch.map(|l| self.images.hold_lowers(id.as_str(), &l.rootfs.lower));
            if !matches!(held, Some(Ok(()))) {
                tracing::warn!(container = %id, "the container's layers could not be held");
            }
            if let Ok(name) = self.container_names.reserve((pod.clone(), record.spec.meta.clone()), id.as_str()) {
                name.keep();
            }
            self.containers.insert(record);
        }
        unfinished
    }

    /// Learns from a shim what happened meanwhile.
    async fn hear_out(&self, shim: &Client) {
        let Ok(Answer::Report { containers, .. }) = shim.ask(Ask::Report, &[]).await else { return };
        for report in containers {
            let Ok(Some(entry)) = self.containers.find(report.container.as_str()) else { continue };
            let told = entry.update(&self.layout, |record| {
                record.phase = match (&record.phase, report.phase) {
                    // What was told once stays: a start does not move.
                    (Phase::Exited { .. }, _) | (Phase::Running { .. }, Phase::Running { .. }) => record.phase.clone(),
                    (Phase::Running { started, .. }, Phase::Exited { exit, .. }) => {
                        Phase::Exited { started: Some(*started), exit }
                    }
                    (_, reported) => reported,
                };
            });
            if let Err(error) = told {
                tracing::warn!(container = %report.container, error = crate::chain::chain(&error), "not recorded");
            }
        }
    }

    /// Writable layers without a container, and image layers that nobody uses.
    async fn sweep_layers(self: &Arc<Self>) {
        let runtime = self.clone();
        blocking(move || {
            for name in disk::names_in(&runtime.layout.writables()).unwrap_or_default() {
                if matches!(runtime.containers.find(&name), Ok(Some(_))) {
                    continue;
                }
                if let Err(error) = disk::remove_dir(&runtime.layout.writables().join(&name)) {
                    tracing::warn!(name, error = crate::chain::chain(&error), "a writable layer stays behind");
                }
            }
            if let Err(error) = runtime.images.sweep() {
                tracing::warn!(error = crate::chain::chain(&error), "unused image layers stay behind");
            }
        })
        .await;
    }
}

/// What lies where a record should be.
enum Found<R> {
    Record(Box<R>),
    /// Never written: whatever is there was never finished.
    Nothing,
    /// Of another release, or damaged: somebody else's to judge, so it is left as it is.
    Foreign,
}

fn read<R: serde::de::DeserializeOwned>(path: &Path, version: fn(&R) -> u32) -> Found<R> {
    match disk::read_json::<R>(path) {
        Ok(Some(record)) if version(&record) == VERSION => Found::Record(Box::new(record)),
        Ok(Some(record)) => {
            let found = version(&record);
            tracing::error!(path = %path.display(), found, "a record of another version is left alone");
            Found::Foreign
        }
        Ok(None) => Found::Nothing,
        Err(error) => {
            tracing::error!(error = crate::chain::chain(&error), "a record that cannot be read is left alone");
            Found::Foreign
        }
    }
}
