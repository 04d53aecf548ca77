//! Events of NRI, and the mask of those that a plugin subscribes to.

use std::fmt;

use crate::api::Event;

/// The calls to a plugin that an event mask selects.
const EVENTS: [(Event, &str); 14] = [
    (Event::RunPodSandbox, "RunPodSandbox"),
    (Event::StopPodSandbox, "StopPodSandbox"),
    (Event::RemovePodSandbox, "RemovePodSandbox"),
    (Event::CreateContainer, "CreateContainer"),
    (Event::PostCreateContainer, "PostCreateContainer"),
    (Event::StartContainer, "StartContainer"),
    (Event::PostStartContainer, "PostStartContainer"),
    (Event::UpdateContainer, "UpdateContainer"),
    (Event::PostUpdateContainer, "PostUpdateContainer"),
    (Event::StopContainer, "StopContainer"),
    (Event::RemoveContainer, "RemoveContainer"),
    (Event::UpdatePodSandbox, "UpdatePodSandbox"),
    (Event::PostUpdatePodSandbox, "PostUpdatePodSandbox"),
    (Event::ValidateContainerAdjustment, "ValidateContainerAdjustment"),
];

/// Returns the name of the RPC of an event.
#[must_use]
pub fn method(event: Event) -> &'static str {
    EVENTS.iter().find(|(known, _)| *known == event).map_or("StateChange", |(_, method)| method)
}

/// Returns whether a plugin older than v0.12.0 receives the event as StateChange.
#[must_use]
pub fn is_state_change(event: Event) -> bool {
    use Event as E;
    match event {
        E::RunPodSandbox
        | E::StopPodSandbox
        | E::RemovePodSandbox
        | E::PostUpdatePodSandbox
        | E::PostCreateContainer
        | E::StartContainer
        | E::PostStartContainer
        | E::PostUpdateContainer
        | E::RemoveContainer => true,
        E::CreateContainer
        | E::UpdateContainer
        | E::StopContainer
        | E::UpdatePodSandbox
        | E::ValidateContainerAdjustment
        | E::Unknown
        | E::Last => false,
    }
}

/// The events that a plugin subscribes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EventMask(u32);

/// A mask with bits that stand for no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("event mask {0:#x} has unknown events, known are {known:#x}", known = EventMask::ALL.0)]
pub struct UnknownEvents(u32);

impl EventMask {
    /// All events.
    pub const ALL: Self = Self(0x3fff);

    /// Reads the mask of a plugin; 0 subscribes to all events.
    pub fn parse(mask: i32) -> Result<Self, UnknownEvents> {
        let mask = mask.cast_unsigned();
        match mask {
            0 => Ok(Self::ALL),
            _ if mask & !Self::ALL.0 != 0 => Err(UnknownEvents(mask)),
            _ => Ok(Self(mask)),
        }
    }

    /// Returns whether the mask has the event.
    #[must_use]
    pub fn has(self, event: Event) -> bool {
        let number = i32::from(event);
        number > 0 && self.0 & (1 << (number - 1)) != 0
    }
}

impl fmt::Debug for EventMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_has_the_bit_of_its_number() {
        for (position, (event, _)) in
            EVENTS.iter().filter(|(event, _)| i32::from(*event) <= 14).map(|entry| (i32::from(entry.0) - 1, entry))
        {
            let mask = EventMask::parse(1 << position).unwrap();
            assert!(mask.has(*event), "{event:?}");
            let others = EVENTS.iter().filter(|(other, _)| other != event);
            assert!(others.clone().all(|(other, _)| !mask.has(*other)), "{event:?}");
        }
        assert_eq!(EVENTS.len(), 14);
        assert!(!EventMask::ALL.has(Event::Unknown));
    }

    #[test]
    fn zero_subscribes_to_all_events_and_unknown_bits_are_refused() {
        assert_eq!(EventMask::parse(0), Ok(EventMask::ALL));
        assert_eq!(EventMask::parse(0x3fff), Ok(EventMask::ALL));
        assert_eq!(EventMask::parse(0x4000), Err(UnknownEvents(0x4000)));
        assert_eq!(
            EventMask::parse(-1).unwrap_err().to_string(),
            "event mask 0xffffffff has unknown events, known are 0x3fff"
        );
    }

    #[test]
    fn events_with_an_answer_are_never_a_state_change() {
        let answered: Vec<_> = EVENTS.iter().filter(|(event, _)| !is_state_change(*event)).map(|(_, m)| *m).collect();
        let expected =
            ["CreateContainer", "UpdateContainer", "StopContainer", "UpdatePodSandbox", "ValidateContainerAdjustment"];
        assert_eq!(answered, expected);
    }
}
