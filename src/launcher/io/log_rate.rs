//! How fast the output of a container goes to its log.
//!
//! Above the rate no output is read, so the container waits for room in its pipe, as it does for any slow log, and nothing is
//! lost. What counts is what the log grows by: a container that prints empty lines has forty times as much written as it prints.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// A container may be ahead of its rate by so much: programs print much when they start, and when they fail.
const BURST: Duration = Duration::from_secs(4);
/// Shorter pauses are not worth a timer.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// The rate of one container, and how much of it is used.
#[derive(Debug)]
pub(crate) struct LogRate {
    bytes_per_second: Option<NonZeroU64>,
    /// When what was written so far would have been written at the rate.
    due: Option<Instant>,
}

impl LogRate {
    /// Zero is no limit.
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: NonZeroU64::new(bytes_per_second), due: None }
    }

    /// Counts what was written until `now`. How long nothing is to be read, unless the container is within its rate.
    pub(crate) fn count(&mut self, now: Instant, bytes: u64) -> Option<Duration> {
        let rate = self.bytes_per_second?;
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let due = self.due.map_or(now, |due| due.max(now)).checked_add(takes)?;
        self.due = Some(due);
        let ahead = due.duration_since(now).checked_sub(BURST).filter(|ahead| !ahead.is_zero())?;
        Some(ahead.max(PAUSE_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_what_follows_takes_its_time() {
        let (mut rate, begin) = (LogRate::new(1000), Instant::now());
        assert_eq!(rate.count(begin, 4000), None);
        assert_eq!(rate.count(begin, 500), Some(Duration::from_millis(500)));
        // After the pause, as much again is a pause as long.
        let later = begin + Duration::from_millis(500);
        assert_eq!(rate.count(later, 0), None);
        assert_eq!(rate.count(later, 500), Some(Duration::from_millis(500)));
        assert_eq!(rate.count(later + Duration::from_secs(60), 4000), None, "a burst is free again");
    }

    #[test]
    fn output_at_the_rate_never_waits_and_none_does_without_one() {
        let (mut rate, begin) = (LogRate::new(1 << 20), Instant::now());
        for second in 0..600 {
            assert_eq!(rate.count(begin + Duration::from_secs(second), 1 << 20), None);
        }
        assert_eq!(LogRate::new(0).count(begin, u64::MAX), None);
    }

    #[test]
    fn a_pause_is_worth_a_timer() {
        let (mut rate, begin) = (LogRate::new(1 << 30), Instant::now());
        assert_eq!(rate.count(begin, 4 << 30), None);
        assert_eq!(rate.count(begin, 2), Some(PAUSE_MIN));
    }
}
