//! A histogram of durations with fixed buckets, for metrics.

use std::time::Duration;

/// Counts of durations by size, and their sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One per bound and one for longer durations; not cumulative.
    counts: Vec<u64>,
    sum: Duration,
}

impl Histogram {
    /// `bounds` are the upper bounds of the buckets in seconds, in increasing order.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: Duration::ZERO }
    }

    pub fn note(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.iter().position(|bound| seconds <= *bound).unwrap_or(self.bounds.len());
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(duration);
    }

    /// Returns the upper bounds with the number of durations up to them; the last has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<f64>, u64)> {
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        bounds.zip(&self.counts).scan(0, |total, (bound, count)| {
            *total += count;
            Some((bound, *total))
        })
    }

    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_first_bucket_that_holds_it() {
        let mut histogram = Histogram::new(&[0.0005, 0.001, 60.0]);
        for micros in [500, 501, 1000, 61_000_000] {
            histogram.note(Duration::from_micros(micros));
        }
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(buckets, [(Some(0.0005), 1), (Some(0.001), 3), (Some(60.0), 3), (None, 4)]);
        assert_eq!((histogram.count(), histogram.sum()), (4, Duration::from_micros(61_002_001)));
    }
}
