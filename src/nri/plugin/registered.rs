//! A plugin after its registration.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::api::Event;
use crate::event::EventMask;
use crate::identity::Identity;
use crate::wire::{CloseReason, Connection};

/// The connection is closed after this many calls in a row without an answer in time.
const TIMEOUTS: u32 = 3;

/// A registered and configured plugin.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) identity: Identity,
    pub(crate) connection: Connection,
    pub(crate) events: EventMask,
    /// Started by crisp, from the directory of plugins.
    pub(crate) is_launched: bool,
    /// Position among all connections.
    pub(crate) number: u64,
    /// It takes events without an answer as StateChange.
    is_state_change: AtomicBool,
    /// It lacks the calls that came with v0.10.
    lacks_update_pod: AtomicBool,
    lacks_validate: AtomicBool,
    timeouts: AtomicU32,
}

impl Registered {
    pub(crate) fn new(
        identity: Identity,
        connection: Connection,
        events: EventMask,
        version: &str,
        (is_launched, number): (bool, u64),
    ) -> Self {
        Self {
            identity,
            connection,
            events,
            is_launched,
            number,
            is_state_change: AtomicBool::new(version.is_empty()),
            lacks_update_pod: AtomicBool::new(false),
            lacks_validate: AtomicBool::new(false),
            timeouts: AtomicU32::new(0),
        }
    }

    /// Returns whether the plugin receives the event.
    pub(crate) fn has(&self, event: Event) -> bool {
        let lacks = self.lacks(event).is_some_and(|lacks| lacks.load(Ordering::Relaxed));
        self.events.has(event) && !lacks
    }

    /// Returns whether the plugin takes this event as StateChange.
    pub(crate) fn takes_state_change(&self) -> bool {
        self.is_state_change.load(Ordering::Relaxed)
    }

    pub(crate) fn set_takes_state_change(&self) {
        self.is_state_change.store(true, Ordering::Relaxed);
    }

    /// Records that the plugin does not know the call of an event; returns whether it may lack it.
    pub(crate) fn set_lacks(&self, event: Event) -> bool {
        let lacks = self.lacks(event);
        if let Some(lacks) = lacks {
            lacks.store(true, Ordering::Relaxed);
        }
        lacks.is_some()
    }

    fn lacks(&self, event: Event) -> Option<&AtomicBool> {
        match event {
            Event::UpdatePodSandbox => Some(&self.lacks_update_pod),
            Event::ValidateContainerAdjustment => Some(&self.lacks_validate),
            _ => None,
        }
    }

    /// Counts a call without an answer in time, and closes the connection after several.
    pub(crate) fn timed_out(&self) {
        if self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS {
            self.connection.close(CloseReason::ByRuntime(format!("{TIMEOUTS} timeouts in a row")));
        }
    }

    pub(crate) fn answered_in_time(&self) {
        self.timeouts.store(0, Ordering::Relaxed);
    }
}
