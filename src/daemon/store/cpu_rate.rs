//! usageNanoCores: the CPU time used per second, from two samples of the cumulative CPU time.

use std::time::{Duration, Instant};

use sync::Mutex;

/// The minimum time between samples; the kernel updates the value in steps.
const CLOSEST: Duration = Duration::from_millis(100);

/// The CPU time used per second, between this sample and an earlier one.
#[derive(Debug, Default)]
pub(crate) struct CpuSamples(Mutex<Option<Reading>>);

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    used: u64,
    /// The rate up to this sample.
    rate: Option<u64>,
}

impl CpuSamples {
    /// Adds a sample of `used` nanoseconds at `at`; returns the nanoseconds used per second.
    pub(crate) fn note(&self, at: Instant, used: u64) -> Option<u64> {
        let mut last = self.0.lock();
        let rate = match *last {
            Some(Reading { at: then, used: before, rate }) => {
                let passed = at.saturating_duration_since(then);
                if passed < CLOSEST {
                    // The earlier sample is kept, so that the interval grows.
                    return rate;
                }
                // A value that decreased belongs to another cgroup.
                used.checked_sub(before).and_then(|more| per_second(more, passed))
            }
            None => None,
        };
        *last = Some(Reading { at, used, rate });
        rate
    }
}

fn per_second(nanos: u64, passed: Duration) -> Option<u64> {
    (u128::from(nanos) * 1_000_000_000).checked_div(passed.as_nanos()).and_then(|rate| u64::try_from(rate).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rate_requires_two_samples_some_time_apart() {
        let (gauge, begin) = (CpuSamples::default(), Instant::now());
        assert_eq!(gauge.note(begin, 5_000), None, "the first");
        assert_eq!(gauge.note(begin + CLOSEST / 2, 900_000), None, "too close");
        assert_eq!(gauge.note(begin + SECOND, 500_005_000), Some(500_000_000));
        assert_eq!(gauge.note(begin + SECOND + CLOSEST / 2, 600_000_000), Some(500_000_000), "the last reported rate");
        assert_eq!(gauge.note(begin + SECOND * 3, 500_005_000), Some(0));
        assert_eq!(gauge.note(begin + SECOND * 4, 4_500_005_000), Some(4_000_000_000), "four cores");
    }

    #[test]
    fn a_decreasing_counter_starts_again() {
        let (gauge, begin) = (CpuSamples::default(), Instant::now());
        gauge.note(begin, 1_000);
        assert_eq!(gauge.note(begin + SECOND, 10), None);
        assert_eq!(gauge.note(begin + SECOND * 2, 1_010), Some(1_000));
        assert_eq!(gauge.note(begin + SECOND, 2_000), Some(1_000), "a clock does not");
        gauge.note(begin + SECOND * 9, u64::MAX);
        assert_eq!(gauge.note(begin + SECOND * 9 + CLOSEST, 0), None);
        assert_eq!(gauge.note(begin + SECOND * 9 + CLOSEST * 2, u64::MAX), None, "no number holds it");
    }
}
