//! Times of memory limit hits: the kernel counts hits without a time, so a count that grew since it was last read
//! belongs to this reading.

use std::collections::HashMap;
use std::time::SystemTime;

use cgroup::{LastHit, LimitHits};
use sync::Mutex;

/// Cgroups with a known count.
const MOST: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Count {
    hits: u64,
    grew: Option<SystemTime>,
}

/// Counts by the path of the cgroup.
#[derive(Debug, Default)]
pub(crate) struct LimitHitTimes(Mutex<HashMap<String, Count>>);

impl LimitHitTimes {
    /// Records counts read at `now`; returns the level whose count grew last, if one has grown since the first reading.
    pub(crate) fn note(&self, read: &[LimitHits], now: SystemTime) -> Option<LastHit> {
        let mut counts = self.0.lock();
        if counts.len() + read.len() > MOST {
            counts.clear();
        }
        let mut last: Option<(SystemTime, &LimitHits)> = None;
        for level in read {
            let known = counts.entry(level.at.cgroup.clone()).or_insert(Count { hits: level.hits, grew: None });
            if level.hits > known.hits {
                known.grew = Some(now);
            } else if level.hits < known.hits {
                // Another cgroup of this path.
                known.grew = None;
            }
            known.hits = level.hits;
            if let Some(grew) = known.grew
                && last.is_none_or(|(time, _)| time < grew)
            {
                last = Some((grew, level));
            }
        }
        last.map(|(grew, level)| LastHit { at: level.at.clone(), hits: level.hits, seen: Some(nanos(grew)) })
    }
}

/// Nanoseconds since 1970.
fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cgroup::{Level, LevelKind};

    use super::*;

    fn hits(cgroup: &str, hits: u64) -> LimitHits {
        LimitHits { at: Level { kind: LevelKind::Pod, cgroup: cgroup.to_owned() }, hits }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn the_level_whose_count_grew_last_is_found() {
        let times = LimitHitTimes::default();
        assert_eq!(times.note(&[hits("/a", 5), hits("/b", 0)], at(1)), None, "before the first reading");
        let last = times.note(&[hits("/a", 5), hits("/b", 2)], at(2)).unwrap();
        assert_eq!((last.at.cgroup.as_str(), last.hits, last.seen), ("/b", 2, Some(2_000_000_000)));
        assert_eq!(times.note(&[hits("/a", 6), hits("/b", 2)], at(3)).unwrap().at.cgroup, "/a");
        assert_eq!(times.note(&[hits("/a", 6), hits("/b", 2)], at(4)).unwrap().seen, Some(3_000_000_000));
        assert_eq!(times.note(&[hits("/a", 0)], at(5)), None, "a new cgroup");
    }

    #[test]
    fn the_number_of_counts_is_bounded() {
        let times = LimitHitTimes::default();
        for n in 0..=MOST {
            times.note(&[hits(&format!("/{n}"), 1)], at(1));
        }
        assert!(times.0.lock().len() <= MOST);
    }
}
