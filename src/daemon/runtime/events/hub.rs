//! Distributes container events to the subscribed clients.

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use sync::Mutex;
use tokio::sync::broadcast;

use super::{Event, EventKind};

/// Maximum events that a client may lag behind. Beyond that it is disconnected, because events
/// would be missing.
const BEHIND: usize = 4096;
/// For this long after the daemon's start, new clients get the exits that no client received.
pub(super) const EARLY: Duration = Duration::from_secs(300);
/// After this time exits are no longer kept for new clients: older ones have been found, and
/// clients have reconnected.
const KEPT: Duration = Duration::from_secs(15);

/// Sends each event to all clients, without waiting for any of them.
#[derive(Debug)]
pub(crate) struct EventHub(Mutex<State>);

#[derive(Debug)]
struct State {
    /// `None` when the daemon exits.
    sender: Option<broadcast::Sender<Arc<Event>>>,
    early: EarlyEvents,
}

/// Exits before the first subscription, including those while no daemon ran.
#[derive(Debug)]
struct EarlyEvents {
    until: Instant,
    kept_until: Instant,
    ends: Vec<Arc<Event>>,
    /// True until the first subscription.
    open: bool,
}

/// A new subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// Exits that no client has received.
    pub(crate) early: Vec<Arc<Event>>,
    /// Later events; `None` when the daemon exits.
    pub(crate) live: Option<broadcast::Receiver<Arc<Event>>>,
}

impl Default for EventHub {
    fn default() -> Self {
        Self::with_room(BEHIND)
    }
}

impl EventHub {
    fn with_room(behind: usize) -> Self {
        let now = Instant::now();
        let early = EarlyEvents { until: now + EARLY, kept_until: now + KEPT, ends: Vec::new(), open: true };
        Self(Mutex::new(State { sender: Some(broadcast::Sender::new(behind)), early }))
    }

    /// Publishes the event that `event` builds, unless no client would receive it.
    pub(super) fn publish(&self, kind: EventKind, event: impl FnOnce() -> Event) {
        if !self.wanted(kind) {
            return;
        }
        // Built without the lock, because it reads files.
        let event = Arc::new(event());
        let mut state = self.lock();
        if state.early.accepts(kind) {
            state.early.ends.push(Arc::clone(&event));
        }
        if let Some(sender) = &state.sender {
            // Fails if there are no clients.
            sender.send(event).ok();
        }
    }

    fn wanted(&self, kind: EventKind) -> bool {
        let mut state = self.lock();
        state.early.accepts(kind) || state.sender.as_ref().is_some_and(|sender| sender.receiver_count() > 0)
    }

    pub(crate) fn subscribe(&self) -> Subscription {
        let mut state = self.lock();
        let early = state.early.take();
        Subscription { early, live: state.sender.as_ref().map(broadcast::Sender::subscribe) }
    }

    /// Ends every client's stream after the queued events.
    pub(crate) fn close(&self) {
        self.lock().sender = None;
    }

    /// Drops the kept exits.
    pub(super) fn forget_early(&self) {
        self.lock().early.drop_old();
    }

    pub(crate) fn listeners(&self) -> usize {
        self.lock().sender.as_ref().map_or(0, broadcast::Sender::receiver_count)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl EarlyEvents {
    fn accepts(&mut self, kind: EventKind) -> bool {
        self.drop_old();
        self.open && kind == EventKind::Stopped && self.ends.len() < BEHIND && Instant::now() < self.kept_until
    }

    fn take(&mut self) -> Vec<Arc<Event>> {
        self.open = false;
        self.drop_old();
        self.ends.clone()
    }

    fn drop_old(&mut self) {
        if Instant::now() >= self.until {
            self.open = false;
            self.ends = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::sync::broadcast::error::{RecvError, TryRecvError};

    use super::*;

    fn event(kind: EventKind, number: usize) -> Event {
        Event { id: number.to_string(), kind, at: SystemTime::UNIX_EPOCH, pod: None, containers: Vec::new() }
    }

    fn publish(hub: &EventHub, kind: EventKind, numbers: std::ops::Range<usize>) {
        numbers.for_each(|number| hub.publish(kind, || event(kind, number)));
    }

    fn taken(live: &mut broadcast::Receiver<Arc<Event>>) -> Vec<String> {
        let mut ids = Vec::new();
        loop {
            match live.try_recv() {
                Ok(event) => ids.push(event.id.clone()),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return ids,
                Err(TryRecvError::Lagged(_)) => ids.push("lost some".to_owned()),
            }
        }
    }

    fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
        range.map(|number| number.to_string()).collect()
    }

    #[test]
    fn a_burst_reaches_every_client_completely_and_in_order() {
        let hub = EventHub::default();
        let mut listeners: Vec<_> = (0..20).map(|_| hub.subscribe().live.unwrap()).collect();
        publish(&hub, EventKind::Stopped, 0..1000);
        publish(&hub, EventKind::Deleted, 1000..2000);
        for listener in &mut listeners {
            assert_eq!(taken(listener), numbers(0..2000));
        }
        assert_eq!(hub.listeners(), 20);
        drop(listeners);
        assert_eq!(hub.listeners(), 0);
    }

    #[test]
    fn only_the_slow_client_loses_events() {
        let hub = EventHub::with_room(4);
        let (mut slow, mut quick) = (hub.subscribe().live.unwrap(), hub.subscribe().live.unwrap());
        for number in 0..20 {
            publish(&hub, EventKind::Stopped, number..number + 1);
            assert_eq!(taken(&mut quick), numbers(number..number + 1));
        }
        assert!(matches!(slow.try_recv(), Err(TryRecvError::Lagged(16))));
    }

    #[test]
    fn exits_without_a_client_are_sent_to_early_clients() {
        let hub = EventHub::default();
        publish(&hub, EventKind::Created, 0..3);
        publish(&hub, EventKind::Stopped, 3..5);
        let ids = |events: Vec<Arc<Event>>| events.iter().map(|event| event.id.clone()).collect::<Vec<_>>();
        let mut first = hub.subscribe();
        publish(&hub, EventKind::Stopped, 5..6);
        assert_eq!(ids(std::mem::take(&mut first.early)), numbers(3..5));
        assert_eq!(taken(&mut first.live.unwrap()), numbers(5..6));
        assert_eq!(ids(hub.subscribe().early), numbers(3..5), "for another client too, without received ones");
        hub.lock().early.until = Instant::now();
        assert!(hub.subscribe().early.is_empty(), "but not for ever");
    }

    #[test]
    fn no_event_is_built_without_clients() {
        let hub = EventHub::default();
        hub.publish(EventKind::Created, || panic!("there are no clients"));
        drop(hub.subscribe());
        hub.publish(EventKind::Stopped, || panic!("all clients have disconnected"));
    }

    #[tokio::test]
    async fn a_daemon_that_exits_ends_all_streams() {
        let hub = EventHub::default();
        let mut live = hub.subscribe().live.unwrap();
        publish(&hub, EventKind::Stopped, 0..1);
        hub.close();
        publish(&hub, EventKind::Stopped, 1..2);
        assert_eq!(live.recv().await.unwrap().id, "0");
        assert!(matches!(live.recv().await, Err(RecvError::Closed)));
        assert!(hub.subscribe().live.is_none());
    }
}
