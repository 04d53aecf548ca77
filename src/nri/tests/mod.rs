//! Tests of the whole crate with a fake plugin over the real socket.

mod attacks;
mod failures;
pub(crate) mod fake;
mod handshake;
mod joining;
mod launched;
mod requests;
mod synchronization;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sync::Mutex;

use crate::api::{Container, Event, PodSandbox};
use crate::host::{Boxed, Host, Object, Observation};
use crate::identity::Identity;
use crate::merge::{Eviction, Update};
use crate::settings::Settings;
use crate::{Roster, Turn};
use fake::Fake;

/// The changes of one call, and the plugin that requested them.
type Change = (String, Vec<Update>, Vec<Eviction>);

/// A daemon: its objects, and all that plugins did to it.
#[derive(Default)]
struct TestHost {
    objects: Mutex<Vec<Object>>,
    snapshots: AtomicUsize,
    changes: Mutex<Vec<Change>>,
    observed: Mutex<Vec<String>>,
    /// Containers whose changes fail.
    failing: Mutex<Vec<String>>,
}

impl Host for TestHost {
    fn objects(&self) -> Box<dyn Iterator<Item = Object> + Send> {
        self.snapshots.fetch_add(1, Ordering::SeqCst);
        Box::new(self.objects.lock().clone().into_iter())
    }

    fn change_containers<'a>(
        &'a self,
        plugin: &'a Identity,
        updates: Vec<Update>,
        evictions: Vec<Eviction>,
    ) -> Boxed<'a, Vec<String>> {
        Box::pin(async move {
            self.changes.lock().push((plugin.to_string(), updates, evictions));
            self.failing.lock().clone()
        })
    }

    fn observe(&self, plugin: &Identity, observation: Observation<'_>) {
        let text = match observation {
            Observation::Called { method, outcome, .. } => format!("{plugin} {method} {outcome}"),
            Observation::AnsweredLate { method, container, .. } => format!("{plugin} {method} late {container:?}"),
            Observation::Active { objects, .. } => format!("{plugin} active {objects}"),
            Observation::Closed { reason } => format!("{plugin} closed: {reason}"),
            Observation::Restarting { pause } => format!("{plugin} restart {pause:?}"),
        };
        self.observed.lock().push(text);
    }
}

impl TestHost {
    /// Waits until an observation begins with this text.
    async fn wait_for(&self, text: &str) {
        wait(text, || self.observed.lock().iter().any(|seen| seen.starts_with(text))).await;
    }
}

/// Waits until a condition holds.
async fn wait(name: &str, condition: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(std::time::Instant::now() < end, "never: {name}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A roster that listens in a directory of its own.
struct Node {
    roster: Roster,
    host: Arc<TestHost>,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

/// Short times, but long enough for a busy machine.
fn settings() -> Settings {
    Settings {
        registration_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_millis(700),
        sync_timeout: Duration::from_secs(5),
        required_wait: Duration::from_millis(300),
        sync_interval: Duration::from_millis(1),
        ..Settings::default()
    }
}

impl Node {
    fn start(settings: Settings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let host = Arc::new(TestHost::default());
        let roster = Roster::new(settings, host.clone());
        let socket = directory.path().join("nri/nri.sock");
        roster.listen(&socket).unwrap();
        Self { roster, host, socket, _directory: directory }
    }

    /// Connects a plugin and waits until it is active.
    async fn plugin(&self, index: &str, name: &str) -> Fake {
        let plugin = Fake::join(&self.socket, index, name).await;
        self.active(&format!("{index}-{name}")).await;
        plugin
    }

    async fn active(&self, name: &str) {
        wait(name, || {
            let plugins = self.roster.plugins();
            plugins.iter().any(|plugin| plugin.identity.to_string() == name && plugin.is_active)
        })
        .await;
    }

    fn names(&self) -> Vec<String> {
        self.roster.plugins().iter().map(|plugin| plugin.identity.to_string()).collect()
    }

    /// Sends StopPodSandbox of `pod`, as a call that reaches every plugin.
    fn ping(&self, pod: &str) -> Turn {
        let turn = self.roster.begin();
        turn.notify(Event::StopPodSandbox, &sandbox(pod), None);
        turn
    }
}

fn sandbox(id: &str) -> Arc<PodSandbox> {
    Arc::new(PodSandbox { id: id.to_owned(), name: id.to_owned(), ..PodSandbox::default() })
}

fn container(id: &str) -> Arc<Container> {
    Arc::new(Container { id: id.to_owned(), name: id.to_owned(), ..Container::default() })
}
