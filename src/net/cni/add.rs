//! CNI ADD: attaches a pod to the configured network; detaches it after a failure.

use std::path::PathBuf;

use model::{ErrorClass, ErrorKind};
use safe_fs::FileError;

use super::cache::Entry;
use super::conf::dir::{BadFile, DirError};
use super::del::DelError;
use super::plugin::args::BadPod;
use super::plugin::chain::{Attachment, PluginChain};
use super::plugin::error::PluginError;
use super::plugin::exec::Deadline;
use super::plugin::{args, exec, result};
use super::{Cni, blocking, is_namespace};
use crate::attachment::{Attached, INTERFACE, Pod};

#[derive(Debug, thiserror::Error)]
pub enum AddError {
    #[error(transparent)]
    Pod(#[from] BadPod),
    #[error("cannot attach the pod to a CNI network: it has no network namespace{}", path.as_ref().map(|p| format!(" at {}", p.display())).unwrap_or_default())]
    NoNamespace { path: Option<PathBuf> },
    #[error(transparent)]
    Dir(#[from] DirError),
    #[error("there is no valid CNI configuration in {}{}", dir.display(), listed(bad))]
    NotConfigured { dir: PathBuf, bad: Vec<BadFile> },
    #[error("pod {pod} is already attached to the CNI network {network}, or must be detached from it first")]
    AlreadyAttached { pod: String, network: String },
    #[error(transparent)]
    Cache(#[from] FileError),
    #[error("attaching the pod to the CNI network {network}")]
    Plugin { network: String, source: PluginError },
    #[error("the plugins of the CNI network {network} returned an unusable result: {why}")]
    Result { network: String, why: &'static str },
    /// [`Cni::attachments`] still lists the pod.
    #[error("attaching the pod to its CNI network failed, and detaching it afterwards as well ({})", chain(left))]
    LeftBehind { left: Box<DelError>, source: Box<AddError> },
}

impl ErrorClass for AddError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Pod(e) => e.kind(),
            Self::NoNamespace { .. } | Self::NotConfigured { .. } | Self::AlreadyAttached { .. } => {
                ErrorKind::Precondition
            }
            Self::Dir(e) => e.kind(),
            Self::Cache(e) => e.kind(),
            Self::Plugin { source, .. } => source.kind(),
            Self::Result { .. } => ErrorKind::Internal,
            Self::LeftBehind { source, .. } => source.kind(),
        }
    }
}

/// Lists the skipped files for the end of a message.
pub(super) fn listed(bad: &[BadFile]) -> String {
    bad.iter().map(|file| format!("; {file}")).collect()
}

/// An error with its causes.
pub(super) fn chain(error: &DelError) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

impl Cni {
    /// Attaches a pod to the network that is configured now.
    ///
    /// After a failure, detaches the pod before it returns. If that fails as well, the error
    /// contains it and the pod stays in the cache until [`Cni::del`] or [`Cni::gc`] succeeds.
    pub async fn add(&self, pod: &Pod) -> Result<Attached, AddError> {
        let _open = self.gate.read().await;
        let _lock = self.pod_locks.lock(&pod.id).await;
        let args = args::identity(pod)?;
        let netns = pod.netns.clone();
        if !netns.as_deref().is_some_and(is_namespace) {
            return Err(AddError::NoNamespace { path: netns });
        }
        let place = Attachment {
            pod: pod.id.clone(),
            interface: INTERFACE.to_owned(),
            netns,
            args,
            offered: args::offered(pod),
        };
        let deadline = self.deadline();
        let mut entry = self.prepare(place, deadline).await?;
        self.held().insert(pod.id.clone());
        match self.attach(&mut entry, deadline).await {
            Ok(attached) => Ok(attached),
            Err(failed) => {
                self.held().remove(&pod.id);
                match self.detach(entry).await {
                    Ok(()) => Err(failed),
                    Err(left) => Err(AddError::LeftBehind { left: Box::new(left), source: Box::new(failed) }),
                }
            }
        }
    }

    /// Checks everything before any plugin is called. Then records that one will be called.
    async fn prepare(&self, place: Attachment, deadline: Deadline) -> Result<Entry, AddError> {
        let found = self.look().await?;
        let Some((_, list)) = found.network else {
            return Err(AddError::NotConfigured { dir: self.settings().conf_dir.clone(), bad: found.bad });
        };
        for capability in args::ASKED {
            if place.offered.contains_key(capability) && !list.wants(capability) {
                tracing::info!(
                    network = list.name,
                    capability,
                    "no plugin of the CNI network has this capability, which the pod uses; the pod runs without it"
                );
            }
        }
        let failed = |source| AddError::Plugin { network: list.name.clone(), source };
        let settings = self.settings();
        let bin_dirs = &settings.bin_dirs;
        exec::find_all(&list, bin_dirs).map_err(failed)?;
        let version = self.versions.negotiate(&list, bin_dirs, deadline, &self.operations).await.map_err(failed)?;
        if let Some(old) = self.cached_attachment(Some(&place.pod)).await?.pop() {
            return Err(AddError::AlreadyAttached { pod: old.pod, network: old.network });
        }
        let entry = Entry { place, list, version, result: None };
        self.write(&entry).await?;
        Ok(entry)
    }

    async fn write(&self, entry: &Entry) -> Result<(), FileError> {
        let draft = entry.draft(&self.settings().cache_dir);
        blocking(move || draft.write()).await
    }

    async fn attach(&self, entry: &mut Entry, deadline: Deadline) -> Result<Attached, AddError> {
        let Entry { place, list, version, .. } = &*entry;
        let settings = self.settings();
        let chain = PluginChain {
            list,
            version: *version,
            bin_dirs: &settings.bin_dirs,
            deadline,
            operations: &self.operations,
        };
        let network = || list.name.clone();
        let result = chain.add(place).await.map_err(|source| AddError::Plugin { network: network(), source })?;
        let attached = result::attached(&result, *version);
        let attached = attached.map_err(|why| AddError::Result { network: network(), why })?;
        entry.result = Some(result);
        self.write(entry).await?;
        Ok(attached)
    }
}
