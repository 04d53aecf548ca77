//! The maximum rate at which the output of a container is written to its log.
//!
//! Above the rate, the shim does not read output, so the container waits for room in its pipe, as
//! with any slow log, and no output is lost. The size of the log entries counts: for empty lines
//! that is forty times the size of the output.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// How far a container may be ahead of its rate: programs print much when they start, and when they
/// fail.
const BURST: Duration = Duration::from_secs(4);
/// Shorter pauses are not worth a timer.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// The rate of one container, and its use.
#[derive(Debug)]
pub(crate) struct LogRate {
    bytes_per_second: Option<NonZeroU64>,
    /// The time at which all bytes so far would have been written at the rate.
    due: Option<Instant>,
}

impl LogRate {
    /// Zero is unlimited.
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: NonZeroU64::new(bytes_per_second), due: None }
    }

    /// Counts bytes written until `now`. Returns how long to pause reading if the container is over
    /// its rate.
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
    fn output_after_a_burst_is_limited_to_the_rate() {
        let (mut rate, begin) = (LogRate::new(1000), Instant::now());
        assert_eq!(rate.count(begin, 4000), None);
        assert_eq!(rate.count(begin, 500), Some(Duration::from_millis(500)));
        // After the pause, the same number of bytes pauses for the same time.
        let later = begin + Duration::from_millis(500);
        assert_eq!(rate.count(later, 0), None);
        assert_eq!(rate.count(later, 500), Some(Duration::from_millis(500)));
        assert_eq!(rate.count(later + Duration::from_secs(60), 4000), None, "a burst is free again");
    }

    #[test]
    fn output_at_the_rate_or_without_a_rate_does_not_wait() {
        let (mut rate, begin) = (LogRate::new(1 << 20), Instant::now());
        for second in 0..600 {
            assert_eq!(rate.count(begin + Duration::from_secs(second), 1 << 20), None);
        }
        assert_eq!(LogRate::new(0).count(begin, u64::MAX), None);
    }

    #[test]
    fn a_pause_has_a_minimum_length() {
        let (mut rate, begin) = (LogRate::new(1 << 30), Instant::now());
        assert_eq!(rate.count(begin, 4 << 30), None);
        assert_eq!(rate.count(begin, 2), Some(PAUSE_MIN));
    }
}
