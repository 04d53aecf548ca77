//! DEL: a pod gives up its place in the network.

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
    #[error("detaching the pod from the network {network}")]
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
    /// Detaches a pod from whatever it was attached to, by what was in force then. May be repeated at will.
    ///
    /// To be called before the pod's network namespace is gone: some plugins leave rules behind otherwise. A pod that
    /// nothing is known of is detached from the network that is configured now, if there is any.
    pub async fn del(&self, pod: &Pod) -> Result<(), DelError> {
        let _open = self.gate.read().await;
        let _lock = self.pod_locks.lock(&pod.id).await;
        self.held().remove(&pod.id);
        let netns = pod.netns.clone().filter(|path| is_namespace(path));
        let cached = self.cached_attachment(Some(&pod.id)).await?;
        let args = args::identity(pod);
        if cached.is_empty() && args.is_err() {
            // It was refused when it was to be attached.
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

    /// The entries of all pods, or of one.
    pub(super) async fn cached_attachment(&self, pod: Option<&str>) -> Result<Vec<CachedAttachment>, FileError> {
        let (dir, pod) = (self.settings().cache_dir.clone(), pod.map(str::to_owned));
        let is_wanted = move |cached: &CachedAttachment| pod.as_ref().is_none_or(|pod| cached.pod == *pod);
        blocking(move || Ok(cache::cached(&dir)?.into_iter().filter(is_wanted).collect())).await
    }

    /// By what is kept of it, in what `netns` makes of the namespace that is; by `unknown` where that is damaged.
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

    /// Calls the plugins, and forgets the pod once all of them have done it.
    ///
    /// Where they never can, the network in use counts if it is another one: a pod that was never attached as a whole, since
    /// its network's file may have been wrong and was mended; and one whose plugins are gone from the node.
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
                    error = chain(&error),
                    "what plugins of an earlier network keep of a pod can no longer be given back"
                );
            }
        }
        let dir = self.settings().cache_dir.clone();
        Ok(blocking(move || entry.remove(&dir)).await?)
    }

    /// Whether the network in use is another than the entry's.
    async fn is_replaced(&self, entry: &Entry) -> bool {
        let config = |list: &ConfList| list.to_value(entry.version);
        let in_use = self.look().await.ok().and_then(|found| found.network);
        in_use.is_some_and(|(_, list)| config(&list) != config(&entry.list))
    }

    async fn call_plugins(&self, entry: &Entry) -> Result<(), PluginError> {
        let Entry { place, list, version, result } = entry;
        let settings = self.settings();
        let chain = PluginChain { list, version: *version, bin_dirs: &settings.bin_dirs, deadline: self.deadline() };
        chain.del(place, result.as_ref()).await
    }

    async fn detach_unknown(&self, place: Attachment) -> Result<(), DelError> {
        let Some((_, list)) = self.look().await?.network else { return Ok(()) };
        let failed = |source| DelError::Plugin { network: list.name.clone(), source };
        let settings = self.settings();
        let (bin_dirs, deadline) = (settings.bin_dirs.as_slice(), self.deadline());
        let version = self.versions.negotiate(&list, bin_dirs, deadline).await.map_err(failed)?;
        PluginChain { list: &list, version, bin_dirs, deadline }.del(&place, None).await.map_err(failed)
    }
}
