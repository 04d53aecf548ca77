//! STATUS: reports whether pods can be attached.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::{ErrorClass, ErrorKind};
use tokio::time::Instant;

use super::Cni;
use super::add::listed;
use super::conf::ConfList;
use super::conf::dir::{BadFile, DirError};
use super::plugin::chain::PluginChain;
use super::plugin::error::PluginError;
use super::plugin::exec;
use super::plugin::exec::Deadline;

/// The lifetime of a cached STATUS. The kubelet calls Status every five seconds.
const GOOD_FOR: Duration = Duration::from_secs(4);
/// The kubelet sets a node to NotReady after 30 s without a response.
const PATIENCE: Duration = Duration::from_secs(10);

/// The configured network.
#[derive(Debug)]
pub struct Ready {
    pub network: String,
    pub file: PathBuf,
    /// Invalid files before it.
    pub skipped: Vec<BadFile>,
}

/// A network to which no pod can be attached.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    #[error(transparent)]
    Dir(#[from] DirError),
    #[error("there is no CNI configuration in {}{}", dir.display(), listed(bad))]
    NoNetwork { dir: PathBuf, bad: Vec<BadFile> },
    #[error("the CNI network {network} of {} is not ready", file.display())]
    Plugin { network: String, file: PathBuf, source: Arc<PluginError> },
}

impl ErrorClass for NotReady {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Dir(e) => e.kind(),
            Self::NoNetwork { .. } => ErrorKind::Precondition,
            Self::Plugin { source, .. } => source.kind(),
        }
    }
}

/// The last STATUS of the plugins.
#[derive(Debug)]
pub(super) struct LastStatus {
    list: ConfList,
    at: Instant,
    output: Result<(), Arc<PluginError>>,
}

impl Cni {
    /// Returns the configured network if its plugins report that they are ready.
    ///
    /// Reads the directory each time. Calls the plugins at most every few seconds, or if the
    /// network has changed, with a limit of a few seconds independent of the settings.
    pub async fn status(&self) -> Result<Ready, NotReady> {
        let found = self.look().await?;
        let Some((file, list)) = found.network else {
            return Err(NotReady::NoNetwork { dir: self.settings().conf_dir.clone(), bad: found.bad });
        };
        let network = list.name.clone();
        let ready = match exec::find_all(&list, &self.settings().bin_dirs) {
            Ok(()) => self.query_status(list).await,
            Err(missing) => Err(Arc::new(missing)),
        };
        match ready {
            Ok(()) => Ok(Ready { network, file, skipped: found.bad }),
            Err(source) => Err(NotReady::Plugin { network, file, source }),
        }
    }

    /// Concurrent callers wait for one call of the plugins.
    async fn query_status(&self, list: ConfList) -> Result<(), Arc<PluginError>> {
        let mut asked = self.asked.lock().await;
        if let Some(last) = asked.as_ref()
            && last.list == list
            && last.at.elapsed() < GOOD_FOR
        {
            return last.output.clone();
        }
        let output = self.check_plugins(&list).await.map_err(Arc::new);
        *asked = Some(LastStatus { list, at: Instant::now(), output: output.clone() });
        output
    }

    async fn check_plugins(&self, list: &ConfList) -> Result<(), PluginError> {
        let settings = self.settings();
        let deadline = Deadline::after(settings.timeout.min(PATIENCE));
        let bin_dirs = &settings.bin_dirs;
        let version = self.versions.negotiate(list, bin_dirs, deadline, &self.operations).await?;
        let chain = PluginChain { list, version, bin_dirs, deadline, operations: &self.operations };
        if version.has_status() { chain.status().await } else { Ok(()) }
    }
}
