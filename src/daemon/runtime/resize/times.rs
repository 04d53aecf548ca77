//! Durations of applied resizes and the memory that they reclaimed, for metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use model::metrics::histogram::Histogram;
use sync::Mutex;

use super::finished::FinishedResize;
use super::outcomes::Outcome;
use super::resources::{Direction, Resource, ResourceChange};

/// Upper bounds of the histograms' buckets, in seconds: a resize without a wait takes some hundred microseconds.
const BOUNDS: [f64; 14] =
    [0.00005, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0];

/// The direction and the resource of a resize, in the words of the metrics.
pub(crate) type ResizeKind = (&'static str, &'static str);

/// Durations and bytes since the daemon's start.
#[derive(Debug, Default)]
pub(crate) struct ResizeTimes(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    durations: BTreeMap<ResizeKind, Histogram>,
    reclaimed: u64,
}

impl ResizeTimes {
    /// Counts a resize with its changed `resources`.
    pub(super) fn note(&self, resize: &FinishedResize, resources: &[ResourceChange]) {
        let reclaimed = resize.reclaimed.map_or(0, |bytes| bytes.0);
        let applied = (resize.outcome == Outcome::Applied).then_some((kind(resources), resize.duration));
        self.add(applied, reclaimed);
    }

    fn add(&self, applied: Option<(ResizeKind, Duration)>, reclaimed: u64) {
        let mut sums = self.0.lock();
        sums.reclaimed = sums.reclaimed.saturating_add(reclaimed);
        if let Some((kind, duration)) = applied {
            sums.durations.entry(kind).or_insert_with(|| Histogram::new(&BOUNDS)).note(duration);
        }
    }

    /// Returns the durations of applied resizes.
    pub(crate) fn durations(&self) -> BTreeMap<ResizeKind, Histogram> {
        self.0.lock().durations.clone()
    }

    /// Returns the memory that was reclaimed while limits were lowered, in bytes.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.0.lock().reclaimed
    }
}

/// Returns the one direction or `mixed`, and the one resource or `several`.
fn kind(resources: &[ResourceChange]) -> ResizeKind {
    let directions = resources.iter().map(|change| match change.direction {
        Direction::Up => "up",
        Direction::Down => "down",
        Direction::Other => "other",
    });
    // A set of CPUs has no direction; it does not hide that of another resource.
    let compared = directions.filter(|direction| *direction != "other");
    let direction = one(compared, "mixed").unwrap_or("other");
    let names = resources.iter().map(|change| word(&change.resource));
    (direction, one(names, "several").unwrap_or("other"))
}

/// Returns the label that all have, otherwise `several`.
fn one(mut words: impl Iterator<Item = &'static str>, several: &'static str) -> Option<&'static str> {
    let first = words.next()?;
    Some(if words.all(|word| word == first) { first } else { several })
}

fn word(resource: &Resource) -> &'static str {
    match resource {
        Resource::Cpu | Resource::CpuShares | Resource::CpuWeight => "cpu",
        Resource::Memory | Resource::MemorySwap => "memory",
        Resource::CpusetCpus | Resource::CpusetMems => "cpuset",
        Resource::Other(file) if file.starts_with("memory.") => "memory",
        Resource::Other(file) if file.starts_with("pids.") => "pids",
        Resource::Other(_) => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(resource: Resource, direction: Direction) -> ResourceChange {
        ResourceChange { resource, old: String::new(), new: String::new(), direction }
    }

    #[test]
    fn a_resize_has_one_direction_and_one_resource() {
        use Direction::{Down, Other, Up};
        let (cpu, shares) = (|way| change(Resource::Cpu, way), |way| change(Resource::CpuShares, way));
        let (memory, set) = (|way| change(Resource::Memory, way), |way| change(Resource::CpusetCpus, way));
        for (changes, expected) in [
            (vec![cpu(Up)], ("up", "cpu")),
            (vec![cpu(Down), shares(Down)], ("down", "cpu")),
            (vec![cpu(Up), memory(Up)], ("up", "several")),
            (vec![cpu(Up), memory(Down)], ("mixed", "several")),
            (vec![memory(Down), change(Resource::Other("memory.high".to_owned()), Down)], ("down", "memory")),
            (vec![set(Other)], ("other", "cpuset")),
            (vec![set(Other), cpu(Up)], ("up", "several")),
            (vec![change(Resource::Other("pids.max".to_owned()), Up)], ("up", "pids")),
            (vec![], ("other", "other")),
        ] {
            assert_eq!(kind(&changes), expected, "{changes:?}");
        }
    }

    #[test]
    fn durations_of_microseconds_have_buckets_of_their_own() {
        let times = ResizeTimes::default();
        for micros in [120, 180, 240] {
            times.add(Some((("down", "memory"), Duration::from_micros(micros))), 4096);
        }
        times.add(None, 1);
        let durations = times.durations();
        let buckets: Vec<_> = durations[&("down", "memory")].buckets().map(|(_, count)| count).take(5).collect();
        assert_eq!(buckets, [0, 0, 1, 2, 3]);
        assert_eq!((durations.len(), times.reclaimed()), (1, 3 * 4096 + 1));
    }
}
