//! The last event that was published for a pod or container.

use std::sync::MutexGuard;

use sync::Mutex;

/// The steps of a container's life, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LifecycleStep {
    Created,
    Started,
    Stopped,
}

/// The last published step. Locked while events are published, so that they are in order.
#[derive(Debug, Default)]
pub(crate) struct EventCursor(Mutex<CursorState>);

#[derive(Debug, Default)]
pub(crate) struct CursorState {
    last: Option<LifecycleStep>,
    /// True during a start: its events are published at its end.
    starting: bool,
}

impl EventCursor {
    /// Marks all steps up to `moment` as published by an earlier daemon.
    pub(crate) fn advance_to(&self, moment: LifecycleStep) {
        self.lock().last = Some(moment);
    }

    pub(crate) fn starting(&self, starting: bool) {
        self.lock().starting = starting;
    }

    /// Returns whether a start is in progress.
    pub(crate) fn is_starting(&self) -> bool {
        self.lock().starting
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, CursorState> {
        self.0.lock()
    }
}

impl CursorState {
    /// Returns the steps to publish for a container that has reached `reached`, in order. `ran`:
    /// whether its program ever ran.
    pub(crate) fn pending(&mut self, reached: LifecycleStep, ran: bool) -> Vec<LifecycleStep> {
        if self.starting && reached == LifecycleStep::Stopped {
            // Whether the program ran is not known yet.
            return Vec::new();
        }
        let new = [LifecycleStep::Created, LifecycleStep::Started, LifecycleStep::Stopped].into_iter();
        let new = new.filter(|moment| *moment <= reached && self.last.is_none_or(|last| *moment > last));
        let new: Vec<LifecycleStep> = new.filter(|moment| *moment != LifecycleStep::Started || ran).collect();
        self.last = self.last.max(Some(reached));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::LifecycleStep::{Created, Started, Stopped};
    use super::*;

    #[test]
    fn each_step_is_published_once_and_in_order() {
        let reported = EventCursor::default();
        assert_eq!(reported.lock().pending(Created, false), [Created]);
        assert_eq!(reported.lock().pending(Created, false), []);
        assert_eq!(reported.lock().pending(Started, true), [Started]);
        assert_eq!(reported.lock().pending(Stopped, true), [Stopped]);
        assert_eq!(reported.lock().pending(Stopped, true), []);
    }

    #[test]
    fn a_container_that_never_ran_has_no_start() {
        let reported = EventCursor::default();
        assert_eq!(reported.lock().pending(Stopped, false), [Created, Stopped]);
    }

    #[test]
    fn an_exit_during_the_start_waits_for_its_result() {
        let reported = EventCursor::default();
        reported.lock().pending(Created, false);
        reported.starting(true);
        assert_eq!(reported.lock().pending(Stopped, false), []);
        reported.starting(false);
        assert_eq!(reported.lock().pending(Stopped, true), [Started, Stopped]);
    }

    #[test]
    fn steps_of_an_earlier_daemon_are_not_published_again() {
        let reported = EventCursor::default();
        reported.advance_to(Started);
        assert_eq!(reported.lock().pending(Started, true), []);
        assert_eq!(reported.lock().pending(Stopped, true), [Stopped]);
    }
}
