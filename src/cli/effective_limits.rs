//! Effective limits as text: the lowest limits of a cgroup and all above it.

use std::time::{Duration, SystemTime};

use cgroup::{EffectiveCpus, EffectiveLimit, EffectiveLimits, LastHit, LeastFree, Level, LevelKind};

use super::units;

/// Returns a line for each resource.
pub(super) fn lines(limits: &EffectiveLimits, now: SystemTime) -> Vec<String> {
    let EffectiveLimits { cpu, memory, pids, cpuset, memory_hits: _, last_memory_hit } = limits;
    let mut lines = vec![
        line("cpu", cpu.as_ref(), cpus, cpus),
        line("memory", memory.as_ref(), units::bytes, units::measured),
        line("pids", pids.as_ref(), |count| count.to_string(), |count| count.to_string()),
    ];
    if let Some(EffectiveCpus { cpus, set_by }) = cpuset {
        lines.push(format!("cpus: effective {cpus}, set by {}", place(set_by)));
    }
    if let Some(LastHit { at, hits, seen }) = last_memory_hit {
        let seen = seen.map_or_else(String::new, |seen| format!(", noticed {} s ago", age(seen, now).as_secs()));
        lines.push(format!("memory limit last hit: {}, {hits} times in total{seen}", place(at)));
    }
    lines
}

/// Returns the line of a memory limit.
pub(super) fn memory(limit: &EffectiveLimit) -> String {
    line("memory", Some(limit), units::bytes, units::measured)
}

/// Returns the line of a CPU limit.
pub(super) fn cpu(limit: &EffectiveLimit) -> String {
    line("cpu", Some(limit), cpus, cpus)
}

fn line(
    what: &str,
    limit: Option<&EffectiveLimit>,
    show: impl Fn(u64) -> String,
    measured: impl Fn(u64) -> String,
) -> String {
    let Some(EffectiveLimit { limit, set_by, free, least_free }) = limit else {
        return format!("{what}: effective no limit");
    };
    let free = free.map_or_else(String::new, |free| format!(", {} free", measured(free)));
    let least = least_free
        .as_ref()
        .map_or_else(String::new, |LeastFree { free, at }| format!(", only {} free in {}", measured(*free), place(at)));
    format!("{what}: effective {}, set by {}{free}{least}", show(*limit), place(set_by))
}

/// Billionths of a CPU as in a pod spec.
pub(super) fn cpus(nanos: u64) -> String {
    units::millis(nanos / 1_000_000)
}

pub(super) fn place(Level { kind, cgroup }: &Level) -> String {
    match kind {
        LevelKind::Container => "its own cgroup".to_owned(),
        LevelKind::Root => "the root cgroup".to_owned(),
        LevelKind::Pod | LevelKind::Parent => format!("the {} cgroup {cgroup}", kind.word()),
    }
}

fn age(nanos: u64, now: SystemTime) -> Duration {
    now.duration_since(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_resource_has_a_line_with_the_level_that_sets_it() {
        let level = |kind, cgroup: &str| Level { kind, cgroup: cgroup.to_owned() };
        let limits = EffectiveLimits {
            cpu: Some(EffectiveLimit {
                limit: 1_500_000_000,
                set_by: level(LevelKind::Container, "/pods/p/c"),
                free: None,
                least_free: None,
            }),
            memory: Some(EffectiveLimit {
                limit: 40 << 20,
                set_by: level(LevelKind::Pod, "/pods/p"),
                free: Some((12 << 20) + (1 << 19)),
                least_free: Some(LeastFree { free: 3 << 20, at: level(LevelKind::Parent, "/pods") }),
            }),
            pids: None,
            cpuset: Some(EffectiveCpus { cpus: "0-3".into(), set_by: level(LevelKind::Root, "/") }),
            last_memory_hit: Some(LastHit { at: level(LevelKind::Pod, "/pods/p"), hits: 7, seen: Some(5_000_000_000) }),
            ..EffectiveLimits::default()
        };
        assert_eq!(
            lines(&limits, SystemTime::UNIX_EPOCH + Duration::from_secs(65)),
            [
                "cpu: effective 1500m, set by its own cgroup",
                "memory: effective 40Mi, set by the pod cgroup /pods/p, 12.5 MiB free, only 3.0 MiB free in the parent \
                 cgroup /pods",
                "pids: effective no limit",
                "cpus: effective 0-3, set by the root cgroup",
                "memory limit last hit: the pod cgroup /pods/p, 7 times in total, noticed 60 s ago",
            ]
        );
    }
}
