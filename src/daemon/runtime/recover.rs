//! Going on where another daemon ended.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use model::error_chain::chain;
use model::{ContainerId, PodId, PodMeta, PodState};
use tokio::task::JoinSet;

use super::{OpenError, Runtime, blocking};
use crate::store::{ContainerRecord, PodRecord, VERSION};

/// How long requests wait for shims that do not answer; they are found later then.
const FIND_WITHIN: Duration = Duration::from_secs(10);

impl Runtime {
    /// Finds every pod and container that exists, asks their shims how they are, and clears away the rest: what was
    /// begun and never finished, and what a reboot left without its pod.
    pub(super) async fn recover(self: &Arc<Self>) -> Result<(), OpenError> {
        let runtime = self.clone();
        blocking(move || {
            runtime.collect_orphaned_layers();
            runtime.remove_parent_cgroups();
        })
        .await;
        let mut work = JoinSet::new();
        for name in safe_fs::list_names(&self.layout.pods())? {
            let Ok(id) = PodId::try_from(name) else { continue };
            let runtime = self.clone();
            match read::<PodRecord>(&self.pod_dir(&id).join("pod.json")) {
                Found::Record(record) => {
                    let unfinished = self.recover_pod(*record);
                    work.spawn(async move { runtime.sync_pod(&id, unfinished).await });
                }
                Found::Nothing => {
                    tracing::info!(pod = %id, "clearing away a pod that was never finished");
                    work.spawn(async move { drop(runtime.cleanup_pod(&id).await) });
                }
                Found::Foreign => {}
            }
        }
        self.recover_networks().await;
        let all = async { while work.join_next().await.is_some() {} };
        if tokio::time::timeout(FIND_WITHIN, all).await.is_err() {
            tracing::warn!(pods = work.len(), "some pods are still looked for");
        }
        work.detach_all();
        Ok(())
    }

    /// Puts a pod and its containers on the books; returns the containers that were never finished.
    fn recover_pod(&self, record: PodRecord) -> Vec<ContainerId> {
        let id = record.id.clone();
        // Taken only once: two records with one name cannot have been written.
        if let Ok(name) = self.pod_names.reserve(record.spec.meta.clone(), PodMeta::to_string, id.as_str()) {
            name.keep();
        }
        self.selinux.remember(id.as_str(), record.selinux.as_ref());
        if record.state == PodState::Ready
            && let Err(gone) = self.handler(&record)
        {
            tracing::warn!(%gone);
        }
        Self::mark_pod_published(&self.pods.insert(self.recover_pod_resize(record)));
        let names = safe_fs::list_names(&self.layout.containers(&id)).unwrap_or_else(|error| {
            tracing::error!(pod = %id, error = chain(&error), "the pod's containers cannot be found");
            Vec::new()
        });
        let mut unfinished = Vec::new();
        for container in names.into_iter().filter_map(|name| ContainerId::try_from(name).ok()) {
            let file = self.layout.container(&id, &container).join("container.json");
            match read::<ContainerRecord>(&file) {
                Found::Record(record) => self.recover_container(*record),
                Found::Nothing => unfinished.push(container),
                Found::Foreign => {}
            }
        }
        unfinished
    }

    fn recover_container(&self, record: ContainerRecord) {
        let name = (record.pod.clone(), record.spec.meta.clone());
        if let Ok(name) = self.container_names.reserve(name, |(_, name)| name.to_string(), record.id.as_str()) {
            name.keep();
        }
        self.selinux.remember(record.id.as_str(), record.selinux.as_ref());
        let entry = self.containers.insert(self.recover_container_resize(record));
        self.release_if_ended(&entry);
        Self::mark_published(&entry);
    }

    /// Brings what is known of a pod up to date.
    async fn sync_pod(self: &Arc<Self>, id: &PodId, unfinished: Vec<ContainerId>) {
        let Ok(pod) = self.pod(id.as_str()) else { return };
        if pod.state == PodState::Ready {
            self.reconnect_shim(id).await;
        } else if self.containers_of(id).iter().any(|entry| entry.get().state.pid().is_some()) {
            // An end that could not be written down.
            self.handle_shim_death(id).await;
        }
        for container in unfinished {
            tracing::info!(pod = %id, container = %container, "clearing away a container that was never finished");
            self.cleanup_container(id, &container).await;
        }
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

/// Checks the version first: the rest of a record of another version may look like damage.
fn read<R: serde::de::DeserializeOwned>(path: &Path) -> Found<R> {
    let record = match safe_fs::read_json::<serde_json::Value>(path) {
        Ok(Some(record)) => record,
        Ok(None) => return Found::Nothing,
        Err(error) => {
            tracing::error!(error = chain(&error), "cannot read record; pod left alone");
            return Found::Foreign;
        }
    };
    let path = path.display();
    if record["version"] != VERSION {
        let found = &record["version"];
        tracing::error!(%path, %found, supported = VERSION, "record has another version; pod left alone");
        return Found::Foreign;
    }
    match serde_json::from_value(record) {
        Ok(record) => Found::Record(Box::new(record)),
        Err(error) => {
            tracing::error!(%path, %error, "cannot read record; pod left alone");
            Found::Foreign
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::tests::support::pod_record;

    #[test]
    fn a_record_of_another_version_is_left_alone_whatever_else_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod.json");
        assert!(matches!(read::<PodRecord>(&path), Found::Nothing));
        for foreign in [r#"{"version":1,"id":"x"}"#, r#"{"version":99}"#, r#"{"version":2}"#, "{", ""] {
            std::fs::write(&path, foreign).unwrap();
            assert!(matches!(read::<PodRecord>(&path), Found::Foreign), "{foreign}");
        }
        safe_fs::write_json(&path, &pod_record()).unwrap();
        assert!(matches!(read::<PodRecord>(&path), Found::Record(record) if *record == pod_record()));
    }
}
