//! Reloads the configuration on SIGHUP, and when its file changes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use config::{ConfigChange, ConfigReloader, MetricsConfig, RegistryReloader};
use model::error_chain::chain;
use sync::Mutex;
use sync::threads::ORDINARY;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use crate::images::refresh_registries;
use crate::logging::LogLevel;
use crate::metrics::{self, Access, ListenError, Listener, MetricsServer, Sources};
use crate::runtime::Runtime;

/// The interval between two checks of the file.
const PAUSE: Duration = Duration::from_secs(5);

/// The task that reloads the configuration; ends when dropped.
#[derive(Debug)]
pub(crate) struct ConfigWatcher(JoinHandle<()>);

impl Drop for ConfigWatcher {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The parts of the daemon that use new settings.
pub(crate) struct Settings {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) registries: Arc<RegistryReloader>,
    pub(crate) level: LogLevel,
    pub(crate) metrics: Mutex<Endpoint>,
    pub(crate) reload: Mutex<ConfigReloader>,
}

/// The metrics endpoint: its settings, its task and the sources of its values.
pub(crate) struct Endpoint {
    pub(crate) config: Option<MetricsConfig>,
    pub(crate) telling: Option<MetricsServer>,
    pub(crate) sources: Sources,
}

impl Endpoint {
    /// Applies new settings: moves the endpoint, closes it, or changes its certificate and token. After an error
    /// it stays as it was.
    fn change_to(&mut self, config: Option<&MetricsConfig>) -> Result<(), ListenError> {
        match (config, self.config.as_ref(), self.telling.as_ref()) {
            (new, old, _) if new == old => return Ok(()),
            (Some(new), Some(old), Some(server)) if new.listen == old.listen => server.access().set(&new.access)?,
            (Some(new), _, _) => {
                let here = tokio::runtime::Handle::current();
                let access = Access::new(&new.access)?;
                let listener = here.block_on(Listener::bind(&new.listen))?;
                let _runtime = here.enter();
                self.telling = Some(metrics::write_metrics(listener, access, self.sources.clone()));
            }
            (None, _, _) => self.telling = None,
        }
        self.config = config.cloned();
        Ok(())
    }
}

pub(crate) fn watch(settings: Settings) -> io::Result<ConfigWatcher> {
    let mut hangup = signal(SignalKind::hangup())?;
    let settings = Arc::new(settings);
    Ok(ConfigWatcher(tokio::spawn(async move {
        loop {
            let asked = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(PAUSE) => false,
            };
            let settings = Arc::clone(&settings);
            let looked = ORDINARY.run(move || settings.look(asked));
            if looked.await.is_err() {
                tracing::error!(
                    "reloading the configuration panicked; the previous settings stay in use, please report this bug"
                );
            }
        }
    })))
}

impl Settings {
    /// Reloads if a file changed. `asked`: because of SIGHUP, so that also an unchanged file is
    /// logged.
    fn look(&self, asked: bool) {
        let mut reload = self.reload.lock();
        if !asked && !reload.is_due() {
            return;
        }
        match reload.read() {
            Ok(Some(change)) => self.apply(change, &mut reload),
            Ok(None) if asked => tracing::info!("SIGHUP received: the configuration file has not changed"),
            Ok(None) => {}
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, "invalid configuration file; keeping the previous settings");
                return;
            }
        }
        // The registries' own files may have changed too.
        refresh_registries(&self.registries, self.runtime.images());
    }

    fn apply(&self, change: ConfigChange, reload: &mut ConfigReloader) {
        let ConfigChange { mut config, mut applied, waiting, withdrawn } = change;
        if let Err(error) = self.level.set(&config.log.level) {
            tracing::warn!(error = chain(&error), "cannot apply the changed log.level; keeping the previous one");
        }
        let mut metrics = self.metrics.lock();
        if let Err(error) = metrics.change_to(config.metrics.as_ref()) {
            tracing::warn!(
                error = chain(&error),
                "metrics.listen: cannot open the new endpoint; still serving the previous one"
            );
            applied.retain(|key| !key.starts_with("metrics"));
            config.metrics.clone_from(&metrics.config);
            reload.still_listens(metrics.config.clone());
        }
        self.runtime.set_settings(config);
        if !applied.is_empty() {
            tracing::info!(?applied, "configuration reloaded");
        }
        if !waiting.is_empty() {
            tracing::warn!(?waiting, "some changed settings apply only after a restart of the daemon");
        }
        if !withdrawn.is_empty() {
            tracing::info!(?withdrawn, "no restart required: these settings have their active values again");
        }
    }
}
