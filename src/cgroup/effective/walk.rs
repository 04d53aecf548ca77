//! Computes effective limits from the readings of all levels. Pure: nothing here accesses a file.

use model::resources::CpuSet;

use super::{EffectiveCpus, EffectiveLimit, EffectiveLimits, LastHit, LeastFree, Level, LimitHits};

/// The values of one level; `None` if there is no limit or no such file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LevelReading {
    /// In billionths of a CPU.
    pub cpu: Option<u64>,
    pub memory: Option<u64>,
    /// Usage without inactive page cache.
    pub working_set: Option<u64>,
    pub pids: Option<u64>,
    pub pids_used: Option<u64>,
    pub cpus: Option<CpuSet>,
    /// How often this level's own memory limit was hit.
    pub memory_hits: Option<u64>,
}

/// Returns the limits that apply at the first of `levels`; each level is followed by its parent.
pub fn effective_limits(levels: &[(Level, LevelReading)]) -> EffectiveLimits {
    let hits = |(at, reading): &(Level, LevelReading)| Some(LimitHits { at: at.clone(), hits: reading.memory_hits? });
    let memory_hits: Vec<LimitHits> = levels.iter().filter_map(hits).collect();
    EffectiveLimits {
        cpu: lowest(levels, |reading| reading.cpu, |_| None),
        memory: lowest(levels, |reading| reading.memory, |reading| reading.working_set),
        pids: lowest(levels, |reading| reading.pids, |reading| reading.pids_used),
        cpuset: cpus(levels),
        last_memory_hit: only_hit(&memory_hits),
        memory_hits,
    }
}

/// Returns the only level with hits.
fn only_hit(hits: &[LimitHits]) -> Option<LastHit> {
    let mut hit = hits.iter().filter(|level| level.hits > 0);
    let only = hit.next().filter(|_| hit.next().is_none())?;
    Some(LastHit { at: only.at.clone(), hits: only.hits, seen: None })
}

/// Returns the lowest limit, and the level with the least left.
fn lowest(
    levels: &[(Level, LevelReading)],
    limit: impl Fn(&LevelReading) -> Option<u64>,
    used: impl Fn(&LevelReading) -> Option<u64>,
) -> Option<EffectiveLimit> {
    let limited = || levels.iter().filter_map(|(level, reading)| Some((level, limit(reading)?, reading)));
    // A lowered limit may be below the usage.
    let free = |limit: u64, reading: &LevelReading| used(reading).map(|used| limit.saturating_sub(used));
    // The first of several equal ones.
    let (level, lowest, reading) = limited().min_by_key(|(_, limit, _)| *limit)?;
    let here = free(lowest, reading);
    let least = limited().filter_map(|(at, limit, reading)| Some((at, free(limit, reading)?)));
    let least = least.min_by_key(|(_, free)| *free).filter(|(_, free)| here.is_none_or(|here| *free < here));
    Some(EffectiveLimit {
        limit: lowest,
        set_by: level.clone(),
        free: here,
        least_free: least.map(|(at, free)| LeastFree { free, at: at.clone() }),
    })
}

/// Returns the CPUs of the first level, and the highest level without others.
fn cpus(levels: &[(Level, LevelReading)]) -> Option<EffectiveCpus> {
    let (_, first) = levels.first()?;
    let cpus = first.cpus.as_ref()?;
    let same = |(_, reading): &&(Level, LevelReading)| reading.cpus.as_ref() == Some(cpus);
    let (set_by, _) = levels.iter().take_while(same).last()?;
    Some(EffectiveCpus { cpus: cpus.as_str().to_owned(), set_by: set_by.clone() })
}

#[cfg(test)]
mod tests {
    use super::super::LevelKind;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn level(kind: LevelKind) -> Level {
        let cgroup = match kind {
            LevelKind::Container => "/kubepods/pod1/c1",
            LevelKind::Pod => "/kubepods/pod1",
            LevelKind::Parent => "/kubepods",
            LevelKind::Root => "/",
        };
        Level { kind, cgroup: cgroup.to_owned() }
    }

    fn levels(readings: [LevelReading; 4]) -> Vec<(Level, LevelReading)> {
        let kinds = [LevelKind::Container, LevelKind::Pod, LevelKind::Parent, LevelKind::Root];
        kinds.into_iter().map(level).zip(readings).collect()
    }

    fn memory(limit: Option<u64>, used: u64) -> LevelReading {
        LevelReading { memory: limit.map(|mib| mib * MIB), working_set: Some(used * MIB), ..LevelReading::default() }
    }

    #[test]
    fn without_a_limit_at_any_level_there_is_none() {
        assert_eq!(effective_limits(&levels(Default::default())), EffectiveLimits::default());
        assert_eq!(effective_limits(&[]), EffectiveLimits::default());
    }

    #[test]
    fn the_lowest_limit_of_all_levels_is_effective() {
        for (container, pod, parent, kind, limit) in [
            (Some(500), Some(40), None, LevelKind::Pod, 40),
            (Some(30), Some(40), Some(100), LevelKind::Container, 30),
            (Some(40), Some(40), Some(40), LevelKind::Container, 40),
            (None, None, Some(64), LevelKind::Parent, 64),
            (None, Some(64), Some(128), LevelKind::Pod, 64),
        ] {
            let readings = [memory(container, 10), memory(pod, 20), memory(parent, 25), LevelReading::default()];
            let found = effective_limits(&levels(readings)).memory.unwrap();
            assert_eq!((found.limit, found.set_by), (limit * MIB, level(kind)), "{container:?} {pod:?} {parent:?}");
        }
    }

    #[test]
    fn free_memory_is_that_of_the_level_and_the_tightest_level_is_named() {
        let readings = [memory(Some(64), 10), memory(Some(100), 20), memory(Some(1024), 1020), LevelReading::default()];
        let found = effective_limits(&levels(readings)).memory.unwrap();
        assert_eq!((found.limit, found.free), (64 * MIB, Some(54 * MIB)));
        assert_eq!(found.least_free, Some(LeastFree { free: 4 * MIB, at: level(LevelKind::Parent) }));
        assert_eq!(found.available(), Some(4 * MIB));
        let over = effective_limits(&levels([
            memory(Some(8), 10),
            memory(None, 20),
            LevelReading::default(),
            LevelReading::default(),
        ]));
        let over = over.memory.unwrap();
        assert_eq!((over.free, over.least_free.clone(), over.available()), (Some(0), None, Some(0)), "below its usage");
    }

    #[test]
    fn each_resource_has_a_level_of_its_own() {
        let set = |text: &str| CpuSet::new(text).ok();
        let container = LevelReading { cpu: Some(2_000_000_000), cpus: set("0-1"), ..LevelReading::default() };
        let pod = LevelReading { cpu: Some(500_000_000), cpus: set("0,1"), ..LevelReading::default() };
        let parent = LevelReading { pids: Some(100), pids_used: Some(40), cpus: set("0-3"), ..LevelReading::default() };
        let root = LevelReading { cpus: set("0-7"), ..LevelReading::default() };
        let found = effective_limits(&levels([container, pod, parent, root]));
        let cpu = found.cpu.unwrap();
        assert_eq!((cpu.limit, cpu.set_by, cpu.free), (500_000_000, level(LevelKind::Pod), None));
        let pids = found.pids.unwrap();
        assert_eq!((pids.limit, pids.set_by, pids.free), (100, level(LevelKind::Parent), Some(60)));
        let cpus = found.cpuset.unwrap();
        assert_eq!((cpus.cpus.as_str(), cpus.set_by), ("0-1", level(LevelKind::Pod)));
    }

    #[test]
    fn the_last_hit_is_known_if_one_level_has_hits() {
        let hit = |hits| LevelReading { memory_hits: Some(hits), ..LevelReading::default() };
        let found = effective_limits(&levels([hit(0), hit(7), LevelReading::default(), hit(0)]));
        assert_eq!(found.memory_hits.iter().map(|level| level.hits).collect::<Vec<_>>(), [0, 7, 0]);
        assert_eq!(found.last_memory_hit, Some(LastHit { at: level(LevelKind::Pod), hits: 7, seen: None }));
        for several in [[hit(1), hit(7), hit(0), hit(0)], [hit(0), hit(0), hit(0), hit(0)]] {
            assert_eq!(effective_limits(&levels(several)).last_memory_hit, None);
        }
    }
}
