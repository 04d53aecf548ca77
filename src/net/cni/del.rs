//! CNI DEL: detaches a pod with the configuration that attached it.

use std::path::PathBuf;

use model::{ErrorClass, ErrorKind};
use safe_fs::FileError;

use super::add::chain;
use super::cache::{self, CachedAttachment, Entry};
use super::conf::ConfList;
use super::conf::dir::DirError;
use super::plugin::args;
use super::plugin::chain::{Attachment, PluginChain};
use super::plugin::error::PluginError;
use super::{Cni, blocking, is_namespace};
use crate::attachment::{INTERFACE, Pod};

#[derive(Debug, thiserror::Error)]
pub enum DelError {
    #[error(transparent)]
    Dir(#[from] DirError),
    #[error(transparent)]
    Cache(#[from] FileError),
    #[error("detaching the pod from the CNI network {network}")]
    Plugin { network: String, source: PluginError },
}

impl ErrorClass for DelError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Dir(e) => e.kind(),
            Self::Cache(e) => e.kind(),
            Self::Plugin { source, .. } => source.kind(),
        }
    }
}

impl Cni {
    /// Detaches a pod from its networks, with the configuration that was used to attach it. May be
    /// repeated.
    ///
    /// Call it before the pod's network namespace is removed: some plugins leave rules behind
    /// otherwise. A pod without a record is detached from the configured network, if any.
    pub async fn del(&self, pod: &Pod) -> Result<(), DelError> {
        let _open = self.gate.read().await;
        let _lock = self.pod_locks.lock(&pod.id).await;
        self.held().remove(&pod.id);
        let netns = pod.netns.clone().filter(|path| is_namespace(path));
        let cached = self.cached_attachment(Some(&pod.id)).await?;
        let args = args::identity(pod);
        if cached.is_empty() && args.is_err() {
            // ADD rejected such an id.
            return Ok(());
        }
        let args = args.unwrap_or_else(|_| args::minimal_args(&pod.id));
        let (id, interface) = (pod.id.clone(), INTERFACE.to_owned());
        let unknown = Attachment { pod: id, interface, netns: netns.clone(), args, offered: args::offered(pod) };
        if cached.is_empty() {
            return self.detach_unknown(unknown).await;
        }
        let mut first = Ok(());
        for one in cached {
            first = first.and(self.detach_cached(one, |_| netns.clone(), unknown.clone()).await);
        }
        first
    }

    /// Reads the records of all pods, or of one.
    pub(super) async fn cached_attachment(&self, pod: Option<&str>) -> Result<Vec<CachedAttachment>, FileError> {
        let (dir, pod) = (self.settings().cache_dir.clone(), pod.map(str::to_owned));
        let is_wanted = move |cached: &CachedAttachment| pod.as_ref().is_none_or(|pod| cached.pod == *pod);
        blocking(move || Ok(cache::cached(&dir)?.into_iter().filter(is_wanted).collect())).await
    }

    /// Detaches a pod by its record, with `netns` if that exists; by `unknown` if the record is
    /// damaged.
    pub(super) async fn detach_cached(
        &self,
        cached: CachedAttachment,
        netns: impl FnOnce(Option<PathBuf>) -> Option<PathBuf>,
        unknown: Attachment,
    ) -> Result<(), DelError> {
        let path = cached.path.clone();
        if let Some(mut entry) = blocking(move || cached.read()).await? {
            entry.place.netns = netns(entry.place.netns);
            return self.detach(entry).await;
        }
        self.detach_unknown(unknown).await?;
        Ok(blocking(move || safe_fs::remove_file(&path)).await?)
    }

    /// Calls the plugins, and removes the record when all have succeeded. If they fail and another
    /// network is configured now, that is tried, and then the record is removed: the old
    /// configuration may be invalid, or its plugins uninstalled.
    pub(super) async fn detach(&self, entry: Entry) -> Result<(), DelError> {
        match self.call_plugins(&entry).await {
            Ok(()) => {}
            Err(source) => {
                let hopeless = entry.result.is_none() || matches!(source, PluginError::Missing { .. });
                let error = DelError::Plugin { network: entry.list.name.clone(), source };
                if !(hopeless && self.is_replaced(&entry).await) {
                    return Err(error);
                }
                if self.detach_unknown(entry.place.clone()).await.is_err() {
                    return Err(error);
                }
                tracing::warn!(
                    pod = %entry.place.pod,
                    network = %entry.list.name,
                    error = chain(&error),
                    "DEL of a replaced CNI network failed, DEL of the current one succeeded; the old plugins may keep the pod's addresses"
                );
            }
        }
        let dir = self.settings().cache_dir.clone();
        Ok(blocking(move || entry.remove(&dir)).await?)
    }

    /// Returns whether the configured network differs from that of the record.
    async fn is_replaced(&self, entry: &Entry) -> bool {
        let config = |list: &ConfList| list.to_value(entry.version);
        let in_use = self.look().await.ok().and_then(|found| found.network);
        in_use.is_some_and(|(_, list)| config(&list) != config(&entry.list))
    }

    async fn call_plugins(&self, entry: &Entry) -> Result<(), PluginError> {
        let Entry { place, list, version, result } = entry;
        let settings = self.settings();
        let chain = PluginChain {
            list,
            version: *version,
            bin_dirs: &settings.bin_dirs,
            deadline: self.deadline(),
            operations: &self.operations,
        };
        chain.del(place, result.as_ref()).await
    }

    async fn detach_unknown(&self, place: Attachment) -> Result<(), DelError> {
        let Some((_, list)) = self.look().await?.network else { return Ok(()) };
        let failed = |source| DelError::Plugin { network: list.name.clone(), source };
        let settings = self.settings();
        let (bin_dirs, deadline) = (settings.bin_dirs.as_slice(), self.deadline());
        let version = self.versions.negotiate(&list, bin_dirs, deadline, &self.operations).await.map_err(failed)?;
        let chain = PluginChain { list: &list, version, bin_dirs, deadline, operations: &self.operations };
        chain.del(&place, None).await.map_err(failed)
    }
}
