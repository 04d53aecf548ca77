//! STATUS: whether pods can be attached now, and if not, why.

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

/// How long an answer of the plugins is good for. A kubelet asks every five seconds.
const GOOD_FOR: Duration = Duration::from_secs(4);
/// A kubelet that gets no answer for 30 seconds takes the whole node for lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The network that pods are attached to.
#[derive(Debug)]
pub struct Ready {
    pub network: String,
    pub file: PathBuf,
    /// Files that come before it and are no networks.
    pub skipped: Vec<BadFile>,
}

/// Why no pod can be attached.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    #[error(transparent)]
    Dir(#[from] DirError),
    #[error("there is no CNI configuration in {}{}", dir.display(), listed(bad))]
    NoNetwork { dir: PathBuf, bad: Vec<BadFile> },
    #[error("the network {network} of {} is not ready", file.display())]
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

/// What the plugins of a network said the last time.
#[derive(Debug)]
pub(super) struct LastStatus {
    list: ConfList,
    at: Instant,
    output: Result<(), Arc<PluginError>>,
}

impl Cni {
    /// Which network pods are attached to, and whether its plugins say that they can.
    ///
    /// Reads the directory each time. Plugins are asked at most every few seconds, or when the network is another one, and
    /// have some seconds for all of it, whatever the settings say.
    pub async fn status(&self) -> Result<Ready, NotReady> {
        let found = self.look().await?;
        let Some((file, list)) = found.network else {
            return Err(NotReady::NoNetwork { dir: self.settings().conf_dir.clone(), bad: found.bad });
        };
        let network = list.name.clone();
        let ready = match exec::find_all(&list, &self.settings().bin_dirs) {
            Ok(()) => self.ask(list).await,
            Err(missing) => Err(Arc::new(missing)),
        };
        match ready {
            Ok(()) => Ok(Ready { network, file, skipped: found.bad }),
            Err(source) => Err(NotReady::Plugin { network, file, source }),
        }
    }

    /// Whoever comes while the plugins are being asked waits for their answer.
    async fn ask(&self, list: ConfList) -> Result<(), Arc<PluginError>> {
        let mut asked = self.asked.lock().await;
        if let Some(last) = asked.as_ref()
            && last.list == list
            && last.at.elapsed() < GOOD_FOR
        {
            return last.output.clone();
        }
        let output = self.ask_plugins(&list).await.map_err(Arc::new);
        *asked = Some(LastStatus { list, at: Instant::now(), output: output.clone() });
        output
    }

    async fn ask_plugins(&self, list: &ConfList) -> Result<(), PluginError> {
        let settings = self.settings();
        let deadline = Deadline::after(settings.timeout.min(PATIENCE));
        let bin_dirs = &settings.bin_dirs;
        let version = self.versions.negotiate(list, bin_dirs, deadline).await?;
        if version.has_status() { PluginChain { list, version, bin_dirs, deadline }.status().await } else { Ok(()) }
    }
}
