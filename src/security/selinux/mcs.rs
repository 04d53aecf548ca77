//! Allocates MCS levels, which separate pods: two categories for each, such as `s0:c7,c41`.

use std::collections::BTreeMap;

use sync::Mutex;

/// The levels by owner, a pod or container. Levels of an earlier daemon are added from its records.
#[derive(Debug, Default)]
pub(super) struct McsAllocator(Mutex<BTreeMap<String, String>>);

impl McsAllocator {
    /// Returns a free level of two of the first `categories`, or `None` if all are in use. An `owner`
    /// with a level keeps it.
    ///
    /// The search starts at the random `chance`, so that the levels of other pods are hard to guess.
    pub(super) fn take(&self, owner: &str, sensitivity: &str, categories: u16, chance: u32) -> Option<String> {
        let mut taken = self.0.lock();
        if let Some(own) = taken.get(owner) {
            return Some(own.clone());
        }
        let count = u32::from(categories);
        let pairs = count * count.saturating_sub(1) / 2;
        let level = (0..pairs)
            .map(|step| {
                let (low, high) = pair((chance % pairs + step) % pairs);
                format!("{sensitivity}:c{low},c{high}")
            })
            .find(|level| !taken.values().any(|other| other == level))?;
        taken.insert(owner.to_owned(), level.clone());
        Some(level)
    }

    /// Records a requested level. Other owners may request it too, but `take` does not return it.
    pub(super) fn hold(&self, owner: &str, level: &str) {
        self.0.lock().insert(owner.to_owned(), level.to_owned());
    }

    pub(super) fn free(&self, owner: &str) {
        self.0.lock().remove(owner);
    }
}

/// Returns the pair with this number: (0, 1), (0, 2), (1, 2), (0, 3), ...
fn pair(number: u32) -> (u32, u32) {
    let mut high = number.saturating_mul(2).isqrt();
    // The number of the first pair with `high` equals the count of pairs below `high`.
    while high * (high + 1) / 2 <= number {
        high += 1;
    }
    while high * (high.saturating_sub(1)) / 2 > number {
        high -= 1;
    }
    (number - high * (high - 1) / 2, high)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_number_has_its_own_pair() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(pair), [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]);
        let all: BTreeSet<(u32, u32)> = (0..1024 * 1023 / 2).map(pair).collect();
        assert_eq!(all.len(), 1024 * 1023 / 2);
        assert!(all.iter().all(|(low, high)| low < high && *high < 1024));
    }

    #[test]
    fn every_level_is_allocated_once() {
        let levels = McsAllocator::default();
        let take = |owner: &str, chance| levels.take(owner, "s0", 4, chance);
        let mut given = BTreeSet::new();
        for (number, owner) in ["a", "b", "c", "d", "e", "f"].into_iter().enumerate() {
            let level = take(owner, if number % 2 == 0 { u32::MAX } else { 0 }).unwrap();
            assert!(given.insert(level.clone()), "{level} twice");
            assert_eq!(take(owner, 7), Some(level), "an owner keeps its own");
        }
        assert_eq!(take("g", 3), None);
        levels.free("c");
        levels.free("never");
        let again = take("g", 3).unwrap();
        assert!(given.contains(&again) && take("h", 0).is_none());
    }

    #[test]
    fn requested_levels_are_not_allocated_to_others() {
        let levels = McsAllocator::default();
        levels.hold("named", "s0:c0,c1");
        levels.hold("other", "s0:c0,c1");
        levels.free("other");
        assert_eq!(levels.take("pod", "s0", 3, 0).as_deref(), Some("s0:c0,c2"));
        levels.free("named");
        assert_eq!(levels.take("next", "s0", 3, 0).as_deref(), Some("s0:c0,c1"));
    }

    #[test]
    fn without_two_categories_there_are_no_levels() {
        for categories in [0, 1] {
            assert_eq!(McsAllocator::default().take("pod", "s0", categories, 5), None);
        }
    }
}
