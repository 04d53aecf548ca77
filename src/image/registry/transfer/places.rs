//! Download places, shared by all pulls: no registry can block the downloads of another.
//!
//! There are `image.downloads` places. A waiting layer gets the next free place, those of the
//! registry with the fewest places first. A layer that has waited for [`PATIENCE`], from a registry
//! with less than its share, overtakes: the slowest download of a registry with more than its share
//! loses its place. It continues beside the places if it needs little memory and few downloads do
//! so already; otherwise it is aborted if its rate is too low. The minimum rate grows with the
//! waiting time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use sync::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a layer waits before it overtakes, and the period over which the rate of the others is
/// measured.
const PATIENCE: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(5) };
/// Minimum bytes per second of a download once another registry's layer has waited for
/// [`PATIENCE`]; twice as much after twice that time, and so on.
const RATE_MIN: u64 = 64 << 10;
/// Maximum number of overtaken downloads that continue. Each holds the pipe and buffers of an
/// unpacker, a few MiB.
const BESIDE_MAX: usize = 8;
/// The maximum for one registry.
const BESIDE_OF_REGISTRY_MAX: usize = 2;

/// All places.
#[derive(Debug)]
pub(crate) struct Places {
    count: usize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Arc<Transfer>>,
    /// In order of arrival.
    waiting: Vec<Waiting>,
    last: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    registry: String,
    since: Instant,
}

/// A download that has a place.
#[derive(Debug)]
pub(crate) struct Transfer {
    number: u64,
    registry: String,
    /// The lock key of the layer that it downloads.
    key: String,
    since: Instant,
    bytes: AtomicU64,
    /// Its decoder needs much memory, or that is not known yet.
    is_large: AtomicBool,
    beside: AtomicBool,
    rate: Mutex<Window>,
    broken_off: AtomicBool,
    breaks_off: Notify,
}

/// Bytes and time since the last measurement, and the rate before that.
#[derive(Debug)]
struct Window {
    since: Instant,
    bytes: u64,
    rate: u64,
}

impl Transfer {
    /// Adds received bytes.
    pub(crate) fn came(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Records that its decoder needs almost no memory.
    pub(crate) fn is_small(&self) {
        self.is_large.store(false, Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Waits until the download must yield its place; returns its rate, which was too low.
    pub(crate) async fn broken_off(&self) -> u64 {
        loop {
            let notified = self.breaks_off.notified();
            if self.broken_off.load(Relaxed) {
                return self.rate.lock().rate;
            }
            notified.await;
        }
    }

    /// Returns the bytes per second in the last full period.
    fn rate(&self, now: Instant) -> u64 {
        let mut window = self.rate.lock();
        let (elapsed, bytes) = (now.duration_since(window.since), self.bytes());
        if elapsed >= PATIENCE {
            let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
            let rate = (bytes - window.bytes).saturating_mul(1000) / millis;
            *window = Window { since: now, bytes, rate };
        }
        window.rate
    }

    fn is_beside(&self) -> bool {
        self.beside.load(Relaxed)
    }
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    pub(crate) transfer: Arc<Transfer>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.state.lock().held.retain(|held| held.number != self.transfer.number);
        self.places.changed.notify_waiters();
    }
}

/// A waiting layer, until it has a place or is dropped.
struct Queued<'a> {
    places: &'a Arc<Places>,
    number: u64,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.places.state.lock().waiting.retain(|waiting| waiting.number != self.number);
        self.places.changed.notify_waiters();
    }
}

impl Places {
    pub(crate) fn new(count: usize) -> Self {
        Self { count: count.max(1), state: Mutex::default(), changed: Notify::new() }
    }

    /// Waits for a place for a layer of `registry` with the lock key `key`.
    pub(crate) async fn take(self: &Arc<Self>, registry: &str, key: &str) -> Place {
        let queued = self.queue(registry);
        loop {
            let changed = self.changed.notified();
            if let Some(place) = self.try_take(queued.number, key) {
                return place;
            }
            // Woken by a free place, or after a while to check the rate of the others.
            drop(tokio::time::timeout(PATIENCE / 5, changed).await);
        }
    }

    /// Returns the bytes received for `key`; `None` while it has no place.
    pub(crate) fn bytes_of(&self, key: &str) -> Option<u64> {
        let state = self.state.lock();
        let mut bytes = state.held.iter().filter(|held| held.key == key).map(|held| held.bytes()).peekable();
        bytes.peek()?;
        Some(bytes.sum())
    }

    fn queue(self: &Arc<Self>, registry: &str) -> Queued<'_> {
        let mut state = self.state.lock();
        state.last += 1;
        let (number, now) = (state.last, Instant::now());
        state.waiting.push(Waiting { number, registry: registry.to_owned(), since: now });
        // Their rates are measured from now on, since nothing was waiting before.
        for held in &state.held {
            held.rate(now);
        }
        Queued { places: self, number }
    }

    fn try_take(self: &Arc<Self>, number: u64, key: &str) -> Option<Place> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let waiting = state.first()?;
        if waiting.number != number {
            return None;
        }
        let registry = waiting.registry.clone();
        if state.regular() >= self.count {
            state.overtake(&registry, now.duration_since(waiting.since), now);
        }
        if state.regular() >= self.count {
            return None;
        }
        let transfer = Arc::new(Transfer {
            number,
            registry,
            key: key.to_owned(),
            since: now,
            bytes: AtomicU64::new(0),
            is_large: AtomicBool::new(true),
            beside: AtomicBool::new(false),
            rate: Mutex::new(Window { since: now, bytes: 0, rate: u64::MAX }),
            broken_off: AtomicBool::new(false),
            breaks_off: Notify::new(),
        });
        state.held.push(transfer.clone());
        Some(Place { places: self.clone(), transfer })
    }
}

impl State {
    /// Returns the next to get a place: of those whose registry has the fewest places, the one that
    /// waits longest.
    fn first(&self) -> Option<&Waiting> {
        self.waiting.iter().min_by_key(|waiting| (self.of(&waiting.registry), waiting.number))
    }

    /// Returns the number of downloads of a registry, with and without a place.
    fn of(&self, registry: &str) -> usize {
        self.held.iter().filter(|held| held.registry == registry).count()
    }

    fn regular(&self) -> usize {
        self.held.iter().filter(|held| !held.is_beside()).count()
    }

    /// Frees a place for a layer of `registry` that has waited for `waited`, if it is entitled to
    /// one.
    fn overtake(&self, registry: &str, waited: Duration, now: Instant) {
        if waited < PATIENCE {
            return;
        }
        let own = self.of(registry);
        let others = self.held.iter().filter(|held| {
            held.registry != registry && self.of(&held.registry) > own && now.duration_since(held.since) >= PATIENCE
        });
        let mut others: Vec<(u64, &Arc<Transfer>)> = others.map(|held| (held.rate(now), held)).collect();
        others.sort_by_key(|(rate, _)| *rate);
        let beside = |held: &&Arc<Transfer>| held.is_beside();
        let free = self.held.iter().filter(beside).count() < BESIDE_MAX;
        let aside = others.iter().find(|(_, held)| {
            let of_registry = self.held.iter().filter(beside).filter(|other| other.registry == held.registry).count();
            free && !held.is_beside() && !held.is_large.load(Relaxed) && of_registry < BESIDE_OF_REGISTRY_MAX
        });
        if let Some((rate, held)) = aside {
            tracing::debug!(
                registry = held.registry,
                rate,
                "a slow layer download no longer counts for image.downloads, so that another registry's can start"
            );
            held.beside.store(true, Relaxed);
            return;
        }
        let times = u64::try_from(waited.as_millis() / PATIENCE.as_millis()).unwrap_or(u64::MAX);
        if let Some((rate, held)) = others.first().filter(|(rate, _)| *rate < RATE_MIN.saturating_mul(times)) {
            tracing::debug!(
                registry = held.registry,
                rate,
                "aborting a slow layer download, so that another registry's can start"
            );
            held.broken_off.store(true, Relaxed);
            held.breaks_off.notify_waiters();
        }
    }
}

#[cfg(test)]
#[path = "../tests/places.rs"]
mod tests;
