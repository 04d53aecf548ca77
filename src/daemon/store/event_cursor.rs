//! How much of a life was told to those who follow events.

use std::sync::MutexGuard;

use sync::Mutex;

/// The moments of a life, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Moment {
    Created,
    Started,
    Stopped,
}

/// What was told last. Held while something is told, so that nobody hears of an end before the beginning.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Stage>);

#[derive(Debug, Default)]
pub(crate) struct Stage {
    last: Option<Moment>,
    /// A start is under way: what it comes to is told at its end.
    starting: bool,
}

impl Told {
    /// Everything up to `moment` was told before, by another daemon.
    pub(crate) fn skip_to(&self, moment: Moment) {
        self.lock().last = Some(moment);
    }

    pub(crate) fn starting(&self, starting: bool) {
        self.lock().starting = starting;
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Stage> {
        self.0.lock()
    }
}

impl Stage {
    /// What is to be told now of a life that has come to `reached`, in order. `ran`: whether it ever started.
    pub(crate) fn news(&mut self, reached: Moment, ran: bool) -> Vec<Moment> {
        if self.starting && reached == Moment::Stopped {
            // Whether it ran at all is not known yet.
            return Vec::new();
        }
        let new = [Moment::Created, Moment::Started, Moment::Stopped].into_iter();
        let new = new.filter(|moment| *moment <= reached && self.last.is_none_or(|last| *moment > last));
        let new: Vec<Moment> = new.filter(|moment| *moment != Moment::Started || ran).collect();
        self.last = self.last.max(Some(reached));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::Moment::{Created, Started, Stopped};
    use super::*;

    #[test]
    fn each_moment_is_told_once_and_in_order() {
        let told = Told::default();
        assert_eq!(told.lock().news(Created, false), [Created]);
        assert_eq!(told.lock().news(Created, false), []);
        assert_eq!(told.lock().news(Started, true), [Started]);
        assert_eq!(told.lock().news(Stopped, true), [Stopped]);
        assert_eq!(told.lock().news(Stopped, true), []);
    }

    #[test]
    fn one_that_never_ran_was_not_started() {
        let told = Told::default();
        assert_eq!(told.lock().news(Stopped, false), [Created, Stopped]);
    }

    #[test]
    fn an_end_during_the_start_waits_for_what_the_start_says() {
        let told = Told::default();
        told.lock().news(Created, false);
        told.starting(true);
        assert_eq!(told.lock().news(Stopped, false), []);
        told.starting(false);
        assert_eq!(told.lock().news(Stopped, true), [Started, Stopped]);
    }

    #[test]
    fn what_another_daemon_told_is_not_told_again() {
        let told = Told::default();
        told.skip_to(Started);
        assert_eq!(told.lock().news(Started, true), []);
        assert_eq!(told.lock().news(Stopped, true), [Stopped]);
    }
}
