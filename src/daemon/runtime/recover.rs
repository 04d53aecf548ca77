//! Recovers pods and containers at the start of the daemon.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use model::error_chain::chain;
use model::{ContainerId, PodId, PodMeta, PodState};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::recovered::Recovered;
use super::{OpenError, Runtime, blocking};
use crate::store::{CONTAINER_FILE, ContainerRecord, POD_FILE, PodRecord, Record, Unreadable, record};

/// The time that requests wait for shims that do not answer; later they are connected in the
/// background.
const FIND_WITHIN: Duration = Duration::from_secs(10);

impl Runtime {
    /// Recovers every pod and container that exists, queries their shims, and removes the rest:
    /// incomplete ones, and layers without a pod after a reboot.
    pub(super) async fn recover(self: &Arc<Self>) -> Result<(), OpenError> {
        let runtime = self.clone();
        let mut done = Recovered::default();
        let swept = blocking(move || {
            let swept = runtime.collect_orphaned_layers();
            runtime.remove_parent_cgroups();
            swept
        });
        done.writable_layers = swept.await;
        let mut work = JoinSet::new();
        for name in safe_fs::list_names(&self.layout.pods())? {
            let Ok(id) = PodId::try_from(name) else { continue };
            let runtime = self.clone();
            match read::<PodRecord>(&self.pod_dir(&id), POD_FILE, id.as_str()) {
                Ok(Some(record)) => {
                    let containers = self.recover_containers(&id, None);
                    let unfinished = self.recover_pod(record, containers, &mut done);
                    work.spawn(sync(runtime, id, unfinished));
                }
                Ok(None) => {
                    done.cleanups += 1;
                    let names = runtime.pod_span(&id);
                    names.in_scope(|| tracing::info!("removing a pod that the previous daemon left incomplete"));
                    work.spawn(async move { drop(runtime.cleanup_pod(&id).await) }.instrument(names));
                }
                Err(why) => {
                    let names = runtime.pod_span(&id);
                    names.in_scope(|| tracing::error!(%why, "the record of the pod is unreadable: the pod can only be listed, stopped and removed"));
                    let why = Arc::new(why);
                    let containers = self.recover_containers(&id, Some(&why));
                    let record = self.unreadable_pod(&id, &why, &containers.found);
                    let unfinished = self.recover_pod(record, containers, &mut done);
                    work.spawn(sync(runtime, id, unfinished));
                }
            }
        }
        self.recover_networks().await;
        let all = async { while work.join_next().await.is_some() {} };
        if tokio::time::timeout(FIND_WITHIN, all).await.is_err() {
            tracing::warn!(
                pods = work.len(),
                "the shims of some pods have not answered yet after the daemon's start; connecting in the background"
            );
        }
        work.detach_all();
        self.log_recovered(&done);
        Ok(())
    }

    /// Registers a pod and its containers; returns the incomplete containers.
    fn recover_pod(&self, record: PodRecord, containers: FoundContainers, done: &mut Recovered) -> Vec<ContainerId> {
        let id = record.id.clone();
        self.history.register(&id, self.pod_dir(&id));
        let _names = Self::pod_record_span(&record).entered();
        // Fails only for a name that another record has, which is never written.
        if let Ok(name) = self.pod_names.reserve(record.spec.meta.clone(), PodMeta::to_string, id.as_str()) {
            name.keep();
        }
        self.selinux.remember(id.as_str(), record.selinux.as_ref());
        if record.state == PodState::Ready
            && let Err(gone) = self.handler(&record)
        {
            tracing::warn!(error = %gone, "the pod's runtime handler is no longer in [handlers]; the pod accepts no new containers");
        }
        let record = if record.unreadable.is_some() { record } else { self.finish_interrupted_resize(record, done) };
        Self::mark_pod_published(&self.pods.insert(record));
        containers.found.into_iter().for_each(|container| self.recover_container(container, done));
        done.cleanups += containers.unfinished.len();
        containers.unfinished
    }

    /// Returns the containers in a pod's directory. If the pod's record cannot be read (`of_pod`),
    /// its containers cannot be changed either.
    fn recover_containers(&self, pod: &PodId, of_pod: Option<&Arc<Unreadable>>) -> FoundContainers {
        let names = safe_fs::list_names(&self.layout.containers(pod)).unwrap_or_else(|error| {
            let _names = self.pod_span(pod).entered();
            tracing::error!(
                error = chain(&error),
                "cannot list the pod's containers at the daemon's start; they are missing until the next start"
            );
            Vec::new()
        });
        let mut containers = FoundContainers::default();
        for id in names.into_iter().filter_map(|name| ContainerId::try_from(name).ok()) {
            match read::<ContainerRecord>(&self.layout.container(pod, &id), CONTAINER_FILE, id.as_str()) {
                Ok(Some(record)) => {
                    containers.found.push(ContainerRecord { pod: pod.clone(), unreadable: of_pod.cloned(), ..record });
                }
                Ok(None) => containers.unfinished.push(id),
                Err(why) => {
                    let _names = self.container_span(pod, &id).entered();
                    tracing::error!(%why, "the record of the container is unreadable: it can only be listed, stopped and removed");
                    containers.found.push(self.unreadable_container(pod, &id, &Arc::new(why)));
                }
            }
        }
        containers
    }

    fn recover_container(&self, record: ContainerRecord, done: &mut Recovered) {
        let _names = self.container_record_span(&record).entered();
        let name = (record.pod.clone(), record.spec.meta.clone());
        if let Ok(name) = self.container_names.reserve(name, |(_, name)| name.to_string(), record.id.as_str()) {
            name.keep();
        }
        self.selinux.remember(record.id.as_str(), record.selinux.as_ref());
        let record = if record.unreadable.is_some() { record } else { self.finish_interrupted_resize(record, done) };
        let entry = self.containers.insert(record);
        entry.samples().oom_kills.skip(self.cgroup_of(&entry).oom_kills().unwrap_or(0));
        if entry.get().unreadable.is_none() {
            self.release_if_ended(&entry);
        }
        Self::mark_published(&entry);
    }

    /// Updates a pod's state from its shim, and removes its incomplete containers.
    async fn sync_pod(self: &Arc<Self>, id: &PodId, unfinished: Vec<ContainerId>) {
        let Ok(pod) = self.pod(id.as_str()) else { return };
        let runs = || self.containers_of(id).iter().any(|entry| entry.get().state.pid().is_some());
        match pod.state {
            PodState::Ready => self.reconnect_shim(id).await,
            PodState::Unreadable => self.find_shim_of_unreadable(id).await,
            // The previous daemon could not record the stop.
            PodState::NotReady if runs() => self.handle_shim_death(id).await,
            PodState::NotReady => {}
        }
        for container in unfinished {
            let names = self.container_span(id, &container);
            names.in_scope(|| tracing::info!("removing a container that the previous daemon left incomplete"));
            self.cleanup_container(id, &container).instrument(names).await;
            self.note_unfinished(&container);
        }
    }
}

/// Updates a recovered pod from its shim; the lines about it carry its names.
async fn sync(runtime: Arc<Runtime>, id: PodId, unfinished: Vec<ContainerId>) {
    let names = runtime.pod_span(&id);
    runtime.sync_pod(&id, unfinished).instrument(names).await;
}

/// The containers in a pod's directory.
#[derive(Debug, Default)]
struct FoundContainers {
    found: Vec<ContainerRecord>,
    /// Directories without a record.
    unfinished: Vec<ContainerId>,
}

/// Reads the record in `dir`; `None` without the file.
fn read<R: Record + DeserializeOwned>(dir: &Path, file: &'static str, id: &str) -> Result<Option<R>, Unreadable> {
    match std::fs::read(dir.join(file)) {
        Ok(bytes) => record::parse(file, id, &bytes).map(Some),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Unreadable::Damaged { file, problem: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::tests::support::pod_record;

    #[test]
    fn a_record_is_read_or_the_reason_names_its_version_or_its_damage() {
        let dir = tempfile::tempdir().unwrap();
        let (path, good) = (dir.path().join(POD_FILE), pod_record());
        let read = |id: &str| read::<PodRecord>(dir.path(), POD_FILE, id);
        assert_eq!(read(good.id.as_str()), Ok(None));
        for (content, said) in [
            (r#"{"version":1,"id":"x"}"#, "record pod.json has version 1, and this daemon reads version 2"),
            (r#"{"version":99}"#, "record pod.json has version 99, and this daemon reads version 2"),
            (r#"{"version":2}"#, "record pod.json is damaged: missing field `id`"),
            (r#"{"id":"x"}"#, "record pod.json is damaged: missing version"),
            ("{", "record pod.json is damaged: EOF while parsing an object at line 1 column 1"),
            ("", "record pod.json is damaged: EOF while parsing a value at line 1 column 0"),
        ] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(read(good.id.as_str()).unwrap_err().to_string(), said, "{content}");
        }
        safe_fs::write_json(&path, &good).unwrap();
        assert!(read(&"f".repeat(64)).unwrap_err().to_string().contains("damaged"), "it is of another directory");
        assert_eq!(read(good.id.as_str()), Ok(Some(good)));
    }
}
