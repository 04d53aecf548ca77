//! Networks by CNI plugins: all that CNI 1.1 leaves to a runtime.
//!
//! A network is a file in a directory ([`Settings::conf_dir`]); the first one by name that is valid is in use. Each use
//! reads the directory (`dir`), so a change counts from the next pod on. What a pod was attached by is kept beside its
//! result until it is detached (`cache`): the file may change or vanish meanwhile, and so may the daemon.
//!
//! Plugins are programs (`exec`), and not trusted to end, to answer, or to answer sensibly: each verb has
//! [`Settings::timeout`] for all plugins of the network together.
//!
//! Verbs for one pod take turns, and GC has the network for itself, as CNI wants it. None of the futures should be dropped
//! before its end: the plugin that runs is killed then, and what it did stays until [`Cni::del`] or [`Cni::gc`].

mod add;
mod cache;
mod check;
mod conf;
mod del;
mod gc;
pub(crate) mod plugin;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
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
pub use gc::{GcFailure, GcReport};
pub use plugin::args::BadPod;
pub use plugin::error::{PluginError, Verb};
#[cfg(feature = "fuzzing")]
pub(crate) use plugin::fuzzing;
pub use status::{NotReady, Ready};

use plugin::chain::VersionCache;
use plugin::exec::Deadline;
use status::LastStatus;
use sync::KeyedLock;

/// Where networks and plugins are, and how long plugins may take.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Of the files that describe networks.
    pub conf_dir: PathBuf,
    /// Of the plugins; the first that has one counts.
    pub bin_dirs: Vec<PathBuf>,
    /// Ours alone. It should outlive a reboot, since what plugins allocate does.
    pub cache_dir: PathBuf,
    /// For one verb: all plugins of a network together. To take back a failed ADD, each of them has as much again.
    pub timeout: Duration,
    /// A network's file that lacks the addresses of pods: see [`Cni::set_pod_cidrs`].
    pub template: Option<PathBuf>,
}

/// The networks of this node.
#[derive(Debug)]
pub struct Cni {
    settings: sync::RwLock<Arc<Settings>>,
    /// Had by GC alone, and shared by everything else that changes something.
    gate: RwLock<()>,
    pod_locks: KeyedLock,
    /// Pods that were attached in the life of this process, and that nobody wanted to detach since.
    attached: Mutex<BTreeSet<String>>,
    versions: VersionCache,
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
            asked: tokio::sync::Mutex::default(),
        }
    }

    /// Uses other settings from the next verb on. Pods that are attached stay so, and are detached by what was kept of them:
    /// where that is kept must not change.
    pub fn set(&self, settings: Settings) {
        *self.settings.write() = Arc::new(settings);
    }

    /// Those in force now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }

    /// Whether there is a valid network. Blocks for a moment.
    #[must_use]
    pub fn configured(&self) -> bool {
        conf::dir::find_network(&self.settings().conf_dir).is_ok_and(|found| found.network.is_some())
    }

    /// The pods that still have to be detached, among them those whose attaching was cut off. Blocks for a moment.
    pub fn attachments(&self) -> Result<Vec<String>, FileError> {
        let mut pods: Vec<_> =
            cache::cached(&self.settings().cache_dir)?.into_iter().map(|cached| cached.pod).collect();
        pods.dedup();
        Ok(pods)
    }

    /// Whether this pod still has to be detached.
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

/// Whether `path` is a namespace that still exists, and not what is left where one was.
fn is_namespace(path: &Path) -> bool {
    const NSFS_MAGIC: u32 = 0x6e73_6673;
    rustix::fs::statfs(path).is_ok_and(|fs| u32::try_from(fs.f_type) == Ok(NSFS_MAGIC))
}

/// Short work on the records of attachments: a pod that ends needs them.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    STOP.run(work).await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
}
