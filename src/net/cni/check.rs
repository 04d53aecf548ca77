//! CHECK: verifies that a pod is still attached.

use model::{ErrorClass, ErrorKind};
use safe_fs::FileError;

use super::plugin::chain::PluginChain;
use super::plugin::error::PluginError;
use super::{Cni, blocking, is_namespace};
use crate::attachment::Pod;

#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error("cannot check the CNI network of pod {0}: the pod is not attached to one")]
    NotAttached(String),
    #[error("cannot check the pod's CNI network: its network namespace does not exist")]
    NoNamespace,
    #[error(transparent)]
    Cache(#[from] FileError),
    #[error("checking the pod's attachment to the CNI network {network}")]
    Plugin { network: String, source: PluginError },
}

impl ErrorClass for CheckError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotAttached(_) | Self::NoNamespace => ErrorKind::Precondition,
            Self::Cache(e) => e.kind(),
            Self::Plugin { source, .. } => source.kind(),
        }
    }
}

impl Cni {
    /// Calls CHECK of the plugins that attached the pod. Succeeds without a call if the
    /// configuration disables CHECK or its version has no CHECK.
    pub async fn check(&self, pod: &Pod) -> Result<(), CheckError> {
        let _open = self.gate.read().await;
        let _lock = self.pod_locks.lock(&pod.id).await;
        let mut attached = false;
        for cached in self.cached_attachment(Some(&pod.id)).await? {
            let Some(mut entry) = blocking(move || cached.read()).await? else { continue };
            let Some(result) = entry.result.take() else { continue };
            attached = true;
            if entry.list.disable_check || !entry.version.has_check() {
                continue;
            }
            entry.place.netns = pod.netns.clone();
            if !pod.netns.as_deref().is_some_and(is_namespace) {
                return Err(CheckError::NoNamespace);
            }
            let settings = self.settings();
            let bin_dirs = &settings.bin_dirs;
            let chain = PluginChain {
                list: &entry.list,
                version: entry.version,
                bin_dirs,
                deadline: self.deadline(),
                operations: &self.operations,
            };
            let checked = chain.check(&entry.place, &result).await;
            checked.map_err(|source| CheckError::Plugin { network: entry.list.name.clone(), source })?;
        }
        if attached { Ok(()) } else { Err(CheckError::NotAttached(pod.id.clone())) }
    }
}
