//! The side of the daemon: what this crate reads from it and reports to it.

use std::pin::Pin;
use std::time::Duration;

use crate::api::{Container, PodSandbox};
use crate::identity::Identity;
use crate::merge::{Eviction, Update};
use crate::wire::CloseReason;

/// A pod or container of a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    Pod(PodSandbox),
    Container(Container),
}

/// A boxed future.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The daemon.
pub trait Host: Send + Sync + 'static {
    /// Returns all pods, and the containers that are created or running, for Synchronize.
    ///
    /// The ids must be those of one point in time; each object is built when the iterator returns
    /// it, so that memory does not grow with their number. Must not block.
    fn objects(&self) -> Box<dyn Iterator<Item = Object> + Send>;

    /// Changes and evicts containers for a plugin, without any request of the client: no plugin is
    /// called for it. Returns the ids of containers that were not changed.
    ///
    /// May wait for the change lock of a container. No change lock may be held during a call to a
    /// plugin: a plugin can wait for this with its own lock held.
    fn change_containers<'a>(
        &'a self,
        plugin: &'a Identity,
        updates: Vec<Update>,
        evictions: Vec<Eviction>,
    ) -> Boxed<'a, Vec<String>>;

    /// Counts and times events, for metrics. Must not block.
    fn observe(&self, _plugin: &Identity, _observation: Observation<'_>) {}
}

/// An event of a plugin, for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation<'a> {
    /// A call has ended. `outcome` is `ok`, `refused`, `timeout`, `closed` or `failed`.
    Called { method: &'a str, outcome: &'static str, time: Duration },
    /// The answer to a call that had timed out: its content is dropped, and the plugin is
    /// synchronized again.
    AnsweredLate { method: &'a str, container: Option<&'a str>, time: Duration },
    /// The plugin is synchronized and receives events.
    Active { objects: usize, time: Duration },
    /// The connection was closed.
    Closed { reason: &'a CloseReason },
    /// A pre-installed plugin is started again after this pause.
    Restarting { pause: Duration },
}
