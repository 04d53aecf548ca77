//! All plugins, and the requests that consult them.
//!
//! ```text
//! admit     connections and launched programs → registered plugins
//! join      registered plugins → sessions
//! turn      a request of the client: the plugins at its begin
//! consult   calls that can fail the request
//! creation  CreateContainer and UpdateContainer: merged answers, validators
//! ```
//!
//! A request holds a [`Turn`] from before its first call until its record is changed. A plugin
//! joins in one step: later turns have it, and their calls wait behind its Synchronize; the snapshot
//! is taken when all earlier turns have ended. So each object is either in the snapshot, or the
//! plugin is called for it. No turn waits for a plugin that joined after it began, so none can wait
//! for itself.

mod admit;
mod consult;
mod creation;
mod error;
mod join;
mod turn;

pub use error::RequestError;
pub use turn::{Stopping, Turn};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sync::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::api::{Empty, PodSandbox};
use crate::host::Host;
use crate::identity::Identity;
use crate::listen::{ListenError, Socket};
use crate::plugin::Session;
use crate::required::required;
use crate::settings::Settings;
use crate::wire::{Call, CloseReason};

/// All plugins of a daemon.
#[derive(Debug)]
pub struct Roster(Arc<Inner>);

struct Inner {
    host: Arc<dyn Host>,
    settings: RwLock<Arc<Settings>>,
    state: Mutex<State>,
    /// Counts changes of the sessions.
    sessions_changed: watch::Sender<u64>,
    /// Counts ends of the oldest turn.
    turns_ended: watch::Sender<u64>,
    connections: AtomicU64,
    /// The listener and the launched programs.
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roster").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    /// In the order of their calls.
    sessions: Vec<Arc<Session>>,
    next_turn: u64,
    open_turns: BTreeSet<u64>,
    /// The last synchronization of each plugin, while the next one must wait.
    synchronized: BTreeMap<Identity, Instant>,
    is_shut_down: bool,
}

/// The state of one plugin, for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginState {
    pub identity: Identity,
    pub is_launched: bool,
    /// It is synchronized; otherwise its calls wait for that.
    pub is_active: bool,
}

impl Roster {
    /// Creates an empty roster.
    #[must_use]
    pub fn new(settings: Settings, host: Arc<dyn Host>) -> Self {
        Self(Arc::new(Inner {
            host,
            settings: RwLock::new(Arc::new(settings)),
            state: Mutex::new(State::default()),
            sessions_changed: watch::Sender::new(0),
            turns_ended: watch::Sender::new(0),
            connections: AtomicU64::new(0),
            tasks: Mutex::new(Vec::new()),
        }))
    }

    /// Replaces the settings. The timeouts of a connected plugin change with its next synchronization.
    pub fn set_settings(&self, settings: Settings) {
        *self.0.settings.write() = Arc::new(settings);
    }

    /// Accepts plugins on a socket.
    pub fn listen(&self, path: &Path) -> Result<(), ListenError> {
        let socket = Socket::bind(path)?;
        let task = tokio::spawn(admit::accept(self.0.clone(), socket));
        self.0.tasks.lock().push(task);
        Ok(())
    }

    /// Starts the programs of `plugins`, and again when they end. Returns once each was synchronized
    /// or has failed for the first time.
    pub async fn launch(&self, plugins: &Path, configs: &Path) {
        admit::launch(&self.0, plugins, configs).await;
    }

    /// Begins a request.
    #[must_use]
    pub fn begin(&self) -> Turn {
        Turn::begin(self.0.clone())
    }

    /// Begins a request that needs the required plugins of a pod, or of a container of it; waits a
    /// limited time for those that are not connected.
    pub async fn begin_required(&self, pod: &PodSandbox, container: Option<&str>) -> Result<Turn, RequestError> {
        let settings = self.0.settings();
        let names = required(&settings, pod, container)?;
        let mut changed = self.0.sessions_changed.subscribe();
        let end = Instant::now() + settings.required_wait;
        loop {
            changed.mark_unchanged();
            let turn = Turn::begin(self.0.clone()).with_required(names.clone());
            let missing = turn.missing();
            if missing.is_empty() {
                return Ok(turn);
            }
            drop(turn);
            if tokio::time::timeout_at(end, changed.changed()).await.is_err() {
                return Err(RequestError::Missing { plugins: missing, waited: settings.required_wait });
            }
        }
    }

    /// Returns the connected plugins, in the order of their calls.
    #[must_use]
    pub fn plugins(&self) -> Vec<PluginState> {
        let state = self.0.state.lock();
        let sessions = state.sessions.iter().filter(|session| !session.plugin().connection.is_closed());
        sessions
            .map(|session| PluginState {
                identity: session.plugin().identity.clone(),
                is_launched: session.plugin().is_launched,
                is_active: *session.shared.is_active.borrow(),
            })
            .collect()
    }

    /// Sends Shutdown to all plugins, closes their connections and kills the launched ones. Takes at
    /// most the time of one call.
    pub async fn shut_down(&self) {
        let sessions = {
            let mut state = self.0.state.lock();
            state.is_shut_down = true;
            std::mem::take(&mut state.sessions)
        };
        let settings = self.0.settings();
        let ends: Vec<_> = sessions
            .into_iter()
            .map(|session| {
                let time = settings.request_timeout(session.plugin().identity.name());
                tokio::spawn(async move { send_shutdown(&session, time).await })
            })
            .collect();
        for end in ends {
            // A panic is reported by its task.
            drop(end.await);
        }
        let tasks: Vec<_> = self.0.tasks.lock().drain(..).collect();
        for task in tasks {
            task.abort();
            // Cancelled, so that the socket and the programs are gone now.
            drop(task.await);
        }
    }
}

impl Drop for Roster {
    fn drop(&mut self) {
        for task in self.0.tasks.lock().drain(..) {
            task.abort();
        }
        for session in std::mem::take(&mut self.0.state.lock().sessions) {
            session.plugin().connection.close(CloseReason::ByRuntime("the daemon ends".to_owned()));
        }
    }
}

async fn send_shutdown(session: &Session, time: Duration) {
    let connection = &session.plugin().connection;
    let payload = prost::Message::encode_to_vec(&Empty {});
    let call = Call { method: "Shutdown", payload, timeout: time, traceparent: None };
    let exchange = async { connection.send(call).await?.wait().await };
    match tokio::time::timeout(time, exchange).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(plugin = %session.plugin().identity, %error, "Shutdown failed"),
        Err(_) => tracing::debug!(plugin = %session.plugin().identity, "no answer to Shutdown"),
    }
    connection.close(CloseReason::ByRuntime("the daemon ends".to_owned()));
}

impl Inner {
    fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }
}

fn count(counter: &watch::Sender<u64>) {
    counter.send_modify(|count| *count = count.wrapping_add(1));
}
