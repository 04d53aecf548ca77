//! Pod networks with CNI plugins: the runtime's part of CNI 1.1.
//!
//! The network is the first valid configuration in a directory ([`Settings::conf_dir`]). Each use
//! reads the directory (`dir`), so a change applies to the next pod. The configuration that a pod
//! was attached with is stored with its result until the pod is detached (`cache`), since the file
//! may change meanwhile and the daemon may restart.
//!
//! Plugins are programs (`exec`) that may hang or return anything: each verb has
//! [`Settings::timeout`] for all plugins of the network together.
//!
//! Verbs for one pod are serialized, and GC excludes all others, as CNI requires. Do not drop a
//! future before it is done: that kills the running plugin, and its effects stay until [`Cni::del`]
//! or
//! [`Cni::gc`].

mod add;
mod cache;
mod check;
mod conf;
mod del;
mod dir_stamp;
mod gc;
mod operations;
pub(crate) mod plugin;
mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use safe_fs::FileError;
use sync::Mutex;
use sync::threads::STOP;
use tokio::sync::RwLock;

pub use add::AddError;
pub use check::CheckError;
pub use conf::ConfError;
pub use conf::cidr::{BadCidr, Cidr};
pub use conf::dir::{BadFile, DirError};
pub use conf::pod_cidrs::{PodCidrError, Rendered};
pub use conf::template::TemplateError;
pub use del::DelError;
pub use dir_stamp::DirStamp;
pub use gc::{GcFailure, GcReport, PodIdentity};
pub use operations::{Calls, Operation};
pub use plugin::args::BadPod;
pub use plugin::error::{PluginError, Verb};
#[cfg(feature = "fuzzing")]
pub(crate) use plugin::fuzzing;
pub use status::{NotReady, Ready};

use operations::Operations;
use plugin::chain::VersionCache;
use plugin::exec::Deadline;
use status::LastStatus;
use sync::KeyedLock;

/// The directories of configurations and plugins, and the time limit of plugins.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The directory of network configurations.
    pub conf_dir: PathBuf,
    /// The directories of plugins, searched in order.
    pub bin_dirs: Vec<PathBuf>,
    /// Used by crisp only. It should survive a reboot, since allocations of plugins do.
    pub cache_dir: PathBuf,
    /// For one verb, all plugins of a network together. After a failed ADD each DEL has this time.
    pub timeout: Duration,
    /// A template of a configuration without pod CIDRs: see [`Cni::set_pod_cidrs`].
    pub template: Option<PathBuf>,
}

/// The CNI networks of this node.
#[derive(Debug)]
pub struct Cni {
    settings: sync::RwLock<Arc<Settings>>,
    /// Locked exclusively by GC, and shared by all other verbs that change something.
    gate: RwLock<()>,
    pod_locks: KeyedLock,
    /// Pods that this process attached and has not detached since.
    attached: Mutex<BTreeSet<String>>,
    versions: VersionCache,
    operations: Operations,
    asked: tokio::sync::Mutex<Option<LastStatus>>,
}

impl Cni {
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings: sync::RwLock::new(Arc::new(settings)),
            gate: RwLock::default(),
            pod_locks: KeyedLock::default(),
            attached: Mutex::default(),
            versions: VersionCache::default(),
            operations: Operations::default(),
            asked: tokio::sync::Mutex::default(),
        }
    }

    /// Replaces the settings for the next verbs. Attached pods are detached by their records, so
    /// the cache directory must not change.
    pub fn set(&self, settings: Settings) {
        *self.settings.write() = Arc::new(settings);
    }

    /// Returns the current settings.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }

    /// Returns all calls of plugins since the start.
    #[must_use]
    pub fn operations(&self) -> BTreeMap<Operation, Calls> {
        self.operations.all()
    }

    /// Returns whether a valid network configuration exists. Blocks on file I/O.
    #[must_use]
    pub fn configured(&self) -> bool {
        conf::dir::find_network(&self.settings().conf_dir).is_ok_and(|found| found.network.is_some())
    }

    /// Returns all pods with a record, also those whose ADD was interrupted. Blocks on file I/O.
    pub fn attachments(&self) -> Result<Vec<String>, FileError> {
        let mut pods: Vec<_> =
            cache::cached(&self.settings().cache_dir)?.into_iter().map(|cached| cached.pod).collect();
        pods.dedup();
        Ok(pods)
    }

    /// Returns whether this pod has a record.
    pub async fn is_attached(&self, pod: &str) -> Result<bool, FileError> {
        Ok(!self.cached_attachment(Some(pod)).await?.is_empty())
    }

    pub(crate) async fn look(&self) -> Result<conf::dir::Found, DirError> {
        let dir = self.settings().conf_dir.clone();
        blocking(move || conf::dir::find_network(&dir)).await
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.settings().timeout)
    }

    fn held(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.attached.lock()
    }
}

/// Returns whether `path` is a network namespace, not a leftover file.
fn is_namespace(path: &Path) -> bool {
    const NSFS_MAGIC: u32 = 0x6e73_6673;
    rustix::fs::statfs(path).is_ok_and(|fs| u32::try_from(fs.f_type) == Ok(NSFS_MAGIC))
}

/// Runs blocking work on the records on a thread that is reserved for stopping pods.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    STOP.run(work).await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
}
