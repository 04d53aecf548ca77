//! How much of a life was told to those who follow events.

use std::sync::MutexGuard;

use sync::Mutex;

/// The moments of a life, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LifecycleStep {
    Created,
    Started,
    Stopped,
}

/// What was told last. Held while something is told, so that nobody hears of an end before the beginning.
#[derive(Debug, Default)]
pub(crate) struct EventCursor(Mutex<CursorState>);

#[derive(Debug, Default)]
pub(crate) struct CursorState {
    last: Option<LifecycleStep>,
    /// A start is under way: what it comes to is told at its end.
    starting: bool,
}

impl EventCursor {
    /// Everything up to `moment` was told before, by another daemon.
    pub(crate) fn advance_to(&self, moment: LifecycleStep) {
        self.lock().last = Some(moment);
    }

    pub(crate) fn starting(&self, starting: bool) {
        self.lock().starting = starting;
    }

    /// Whether a start is under way.
    pub(crate) fn is_starting(&self) -> bool {
        self.lock().starting
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, CursorState> {
        self.0.lock()
    }
}

impl CursorState {
    /// What is to be told now of a life that has come to `reached`, in order. `ran`: whether it ever started.
    pub(crate) fn pending(&mut self, reached: LifecycleStep, ran: bool) -> Vec<LifecycleStep> {
        if self.starting && reached == LifecycleStep::Stopped {
            // Whether it ran at all is not known yet.
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
    fn each_moment_is_told_once_and_in_order() {
        let told = EventCursor::default();
        assert_eq!(told.lock().pending(Created, false), [Created]);
        assert_eq!(told.lock().pending(Created, false), []);
        assert_eq!(told.lock().pending(Started, true), [Started]);
        assert_eq!(told.lock().pending(Stopped, true), [Stopped]);
        assert_eq!(told.lock().pending(Stopped, true), []);
    }

    #[test]
    fn one_that_never_ran_was_not_started() {
        let told = EventCursor::default();
        assert_eq!(told.lock().pending(Stopped, false), [Created, Stopped]);
    }

    #[test]
    fn an_end_during_the_start_waits_for_what_the_start_says() {
        let told = EventCursor::default();
        told.lock().pending(Created, false);
        told.starting(true);
        assert_eq!(told.lock().pending(Stopped, false), []);
        told.starting(false);
        assert_eq!(told.lock().pending(Stopped, true), [Started, Stopped]);
    }

    #[test]
    fn what_another_daemon_told_is_not_told_again() {
        let told = EventCursor::default();
        told.advance_to(Started);
        assert_eq!(told.lock().pending(Started, true), []);
        assert_eq!(told.lock().pending(Stopped, true), [Stopped]);
    }
}
