//! Cached measurements of a pod or container. They are part of its entry, and dropped with it.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cgroup::CurrentLimits;
use model::stats::DiskUsage;
use sync::Mutex;

use super::record::ContainerRecord;

/// The age at which a measurement is repeated.
const FRESH_FOR: Duration = Duration::from_secs(10);
/// The maximum age of limits in responses about something else.
const LATELY: Duration = Duration::from_secs(1);
/// At most 1/SHARE of the time is spent on measuring one container.
const SHARE: u32 = 20;

/// The last limits that were read, and the record that they belong to.
#[derive(Debug, Default)]
pub(crate) struct LimitsCache(Mutex<Option<LimitsRead>>);

#[derive(Debug)]
struct LimitsRead {
    at: Instant,
    of: Weak<ContainerRecord>,
    limits: Option<Arc<CurrentLimits>>,
}

impl LimitsCache {
    /// Returns the result of `read`, or a recent one of the same record: every change by crisp
    /// creates a new record. Shared, because many events of a burst contain it.
    pub(crate) fn get_recent(
        &self,
        at: Instant,
        record: &Arc<ContainerRecord>,
        read: impl FnOnce() -> Option<CurrentLimits>,
    ) -> Option<Arc<CurrentLimits>> {
        let mut last = self.0.lock();
        if let Some(last) = &*last
            && last.of.as_ptr() == Arc::as_ptr(record)
            && at.saturating_duration_since(last.at) < LATELY
        {
            return last.limits.clone();
        }
        let limits = read().map(Arc::new);
        *last = Some(LimitsRead { at, of: Arc::downgrade(record), limits: limits.clone() });
        limits
    }
}

/// The disk usage of a writable layer, and when to measure it again.
#[derive(Debug, Default)]
pub(crate) struct DiskSamples(Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    known: Option<DiskUsage>,
    /// No measurement is needed before this time.
    fresh_until: Option<Instant>,
    /// A measurement is queued or in progress.
    taken: bool,
    /// The last measurement took long.
    large: bool,
    /// A failed or incomplete measurement was logged.
    reported: bool,
}

/// Whether and how a layer is to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refresh {
    /// The value is recent, or a measurement is in progress.
    No,
    /// There is no value yet.
    First,
    Again {
        large: bool,
    },
}

/// The result of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskSample {
    pub(crate) usage: DiskUsage,
    /// True if everything was counted; otherwise the values are lower bounds.
    pub(crate) whole: bool,
    /// The time it took, without pauses.
    pub(crate) spent: Duration,
}

impl DiskSamples {
    pub(crate) fn known(&self) -> Option<DiskUsage> {
        self.lock().known
    }

    /// Returns whether the layer is to be measured now; if so, the caller must measure it.
    pub(crate) fn take(&self, now: Instant) -> Refresh {
        let mut measured = self.lock();
        if measured.taken || measured.fresh_until.is_some_and(|until| now < until) {
            return Refresh::No;
        }
        measured.taken = true;
        match (measured.known, measured.large) {
            (None, false) => Refresh::First,
            (_, large) => Refresh::Again { large },
        }
    }

    /// Marks the layer as large; it is measured separately.
    pub(crate) fn is_large(&self) {
        self.lock().large = true;
    }

    /// Ends what [`DiskSamples::take`] started; `None` if the layer could not be measured. Returns
    /// true for the first failed or incomplete measurement after a complete one, to log it.
    pub(crate) fn put(&self, now: Instant, large: bool, look: Option<DiskSample>) -> bool {
        let mut measured = self.lock();
        measured.taken = false;
        measured.large = large;
        let spent = look.map_or(Duration::ZERO, |look| look.spent);
        measured.fresh_until = Some(now + FRESH_FOR.max(spent * SHARE));
        let whole = look.is_some_and(|look| look.whole);
        let reported = std::mem::replace(&mut measured.reported, !whole);
        let Some(DiskSample { mut usage, .. }) = look else { return !reported };
        if let Some(before) = measured.known
            && !whole
        {
            usage.bytes = usage.bytes.max(before.bytes);
            usage.inodes = usage.inodes.max(before.inodes);
        }
        measured.known = Some(usage);
        !whole && !reported
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Measured> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn limits_are_read_again_after_a_time_and_for_a_new_record() {
        use crate::convert::tests::support::container_record;
        let (gauge, begin) = (LimitsCache::default(), Instant::now());
        let (record, changed) = (Arc::new(container_record()), Arc::new(container_record()));
        let mut reads = 0;
        let mut look = |at, record| {
            gauge.get_recent(at, record, || {
                reads += 1;
                None
            });
            reads
        };
        assert_eq!(look(begin, &record), 1);
        assert_eq!(look(begin + LATELY / 2, &record), 1);
        assert_eq!(look(begin + LATELY, &record), 2);
        assert_eq!(look(begin + LATELY, &changed), 3);
        assert_eq!(look(begin + LATELY, &record), 4);
    }

    fn look(bytes: u64, whole: bool, spent: Duration) -> Option<DiskSample> {
        Some(DiskSample { usage: DiskUsage { at: SystemTime::UNIX_EPOCH, bytes, inodes: bytes / 2 }, whole, spent })
    }

    #[test]
    fn one_measurement_at_a_time_within_its_share_of_time() {
        let (gauge, begin) = (DiskSamples::default(), Instant::now());
        assert_eq!(gauge.take(begin), Refresh::First);
        assert_eq!(gauge.take(begin + SECOND * 100), Refresh::No, "a measurement is in progress");
        gauge.put(begin, false, look(10, true, SECOND / 100));
        assert_eq!(gauge.known().unwrap().bytes, 10);
        assert_eq!(gauge.take(begin + FRESH_FOR - SECOND), Refresh::No);
        assert_eq!(gauge.take(begin + FRESH_FOR), Refresh::Again { large: false });
        gauge.put(begin, true, look(12, true, SECOND * 3));
        assert_eq!(gauge.take(begin + SECOND * 59), Refresh::No, "3 s of each minute");
        assert_eq!(gauge.take(begin + SECOND * 60), Refresh::Again { large: true });
    }

    #[test]
    fn an_incomplete_measurement_never_lowers_the_value() {
        let (gauge, now) = (DiskSamples::default(), Instant::now());
        assert!(!gauge.put(now, false, look(10, true, SECOND)));
        assert!(gauge.put(now, false, look(4, false, SECOND)), "worth a word");
        assert!(!gauge.put(now, false, look(3, false, SECOND)), "but only one");
        assert_eq!(gauge.known().map(|known| (known.bytes, known.inodes)), Some((10, 5)));
        assert!(!gauge.put(now, false, look(4, true, SECOND)));
        assert_eq!(gauge.known().map(|known| (known.bytes, known.inodes)), Some((4, 2)));
        assert!(gauge.put(now, false, None), "this is worth a word again");
        assert!(!gauge.put(now, false, None));
        assert_eq!(gauge.known().unwrap().bytes, 4, "a failed measurement keeps the value");
    }
}
