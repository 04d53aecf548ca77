//! The resources that a resize changed, in the units of a pod spec.

use std::fmt;

use cgroup::{Knob, KnobValue, Value};

use super::finished::FileChange;

/// A resource whose limit a resize can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resource {
    /// The CPU limit.
    Cpu,
    /// v1: the share of contended CPUs.
    CpuShares,
    /// v2: the share of contended CPUs.
    CpuWeight,
    Memory,
    /// v1: memory and swap together. v2: swap alone.
    MemorySwap,
    CpusetCpus,
    CpusetMems,
    /// Another file, by its name.
    Other(String),
}

impl Resource {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Cpu => "cpu",
            Self::CpuShares => "cpu_shares",
            Self::CpuWeight => "cpu_weight",
            Self::Memory => "memory",
            Self::MemorySwap => "memory_swap",
            Self::CpusetCpus => "cpuset_cpus",
            Self::CpusetMems => "cpuset_mems",
            Self::Other(file) => file,
        }
    }

    fn of(knob: &Knob) -> Self {
        match knob.file() {
            "cpu.cfs_quota_us" | "cpu.cfs_period_us" | "cpu.max" => Self::Cpu,
            "cpu.shares" => Self::CpuShares,
            "cpu.weight" => Self::CpuWeight,
            "memory.limit_in_bytes" | "memory.max" => Self::Memory,
            "memory.memsw.limit_in_bytes" | "memory.swap.max" => Self::MemorySwap,
            "cpuset.cpus" => Self::CpusetCpus,
            "cpuset.mems" => Self::CpusetMems,
            file => Self::Other(file.to_owned()),
        }
    }
}

/// Whether a resize raised or lowered an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
    /// Not an amount, for example a set of CPUs.
    Other,
}

/// A changed resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourceChange {
    pub(crate) resource: Resource,
    /// As in a pod spec: `500m`, `64Mi`, `max` for no limit; other values as in the file.
    pub(crate) old: String,
    pub(crate) new: String,
    pub(crate) direction: Direction,
}

impl fmt::Display for ResourceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}→{}", self.old, self.new)
    }
}

/// An amount that can be compared; the largest one stands for `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Amount {
    Limit(u64),
    Unlimited,
}

/// Returns the changed resources, each once, in the order of the files.
pub(crate) fn resource_changes(files: &[FileChange]) -> Vec<ResourceChange> {
    let mut changes: Vec<ResourceChange> = Vec::with_capacity(files.len());
    for file in files {
        let resource = Resource::of(&file.knob);
        if changes.iter().any(|change| change.resource == resource) {
            continue;
        }
        let (old, new) = match file.knob.file() {
            "cpu.cfs_quota_us" | "cpu.cfs_period_us" => v1_cpu(files),
            _ => (shown(&file.knob, &file.old, &file.old), shown(&file.knob, &file.new, &file.old)),
        };
        let direction = match (old.1, new.1) {
            (Some(old), Some(new)) if old < new => Direction::Up,
            (Some(old), Some(new)) if old > new => Direction::Down,
            _ => Direction::Other,
        };
        changes.push(ResourceChange { resource, old: old.0, new: new.0, direction });
    }
    changes
}

/// A value in the units of a pod spec, and as an amount if it is one.
type Shown = (String, Option<Amount>);

/// Quota and period are two files on v1; without both, the value of the file is shown.
fn v1_cpu(files: &[FileChange]) -> (Shown, Shown) {
    let of = |knob: &Knob| files.iter().find(|file| file.knob == *knob);
    match (of(&Knob::CFS_QUOTA), of(&Knob::CFS_PERIOD)) {
        (Some(quota), period) => {
            let with =
                |quota: &KnobValue, period: Option<&KnobValue>| match (quota.value(), period.map(KnobValue::value)) {
                    (Value::Unlimited, _) => ("max".to_owned(), Some(Amount::Unlimited)),
                    (Value::Number(quota), Some(Value::Number(period))) => cpus(*quota, *period),
                    (Value::Number(quota), _) => (format!("{quota}us"), Some(Amount::Limit(*quota))),
                    _ => (quota.to_string(), None),
                };
            (with(&quota.old, period.map(|period| &period.old)), with(&quota.new, period.map(|period| &period.new)))
        }
        (None, Some(period)) => {
            ((format!("period {}us", period.old), None), (format!("period {}us", period.new), None))
        }
        (None, None) => Default::default(),
    }
}

/// `old` has the period if the value has none.
fn shown(knob: &Knob, value: &KnobValue, old: &KnobValue) -> Shown {
    let is_bytes = matches!(Resource::of(knob), Resource::Memory | Resource::MemorySwap)
        || ["memory", "hugetlb"].contains(&knob.controller());
    match value.value() {
        Value::Unlimited | Value::Bandwidth { quota: None, .. } => ("max".to_owned(), Some(Amount::Unlimited)),
        Value::Number(number) if is_bytes => (bytes(*number), Some(Amount::Limit(*number))),
        Value::Number(number) => (number.to_string(), Some(Amount::Limit(*number))),
        Value::Bandwidth { quota: Some(quota), period } => {
            let had = match old.value() {
                Value::Bandwidth { period, .. } => *period,
                _ => None,
            };
            match period.or(had) {
                Some(period) => cpus(*quota, period),
                None => (format!("{quota}us"), Some(Amount::Limit(*quota))),
            }
        }
        Value::Set(_) | Value::Text => (value.text().trim().to_owned(), None),
    }
}

/// Returns a quota as a number of CPUs, rounded to thousandths.
fn cpus(quota: u64, period: u64) -> Shown {
    let millis = (u128::from(quota) * 1000 + u128::from(period) / 2).checked_div(u128::from(period));
    let millis = u64::try_from(millis.unwrap_or_default()).unwrap_or(u64::MAX);
    let text = if millis.is_multiple_of(1000) { (millis / 1000).to_string() } else { format!("{millis}m") };
    (text, Some(Amount::Limit(millis)))
}

/// Returns bytes in the largest binary unit that gives a whole number.
fn bytes(bytes: u64) -> String {
    let units = [(1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    match units.into_iter().find(|(size, _)| bytes >= *size && bytes.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", bytes / size),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, old: &str, new: &str) -> FileChange {
        let knob = Knob::unified(&model::resources::UnifiedKey::new(name).unwrap());
        FileChange { old: knob.value(old), new: knob.value(new), knob }
    }

    fn changes(files: &[(&str, &str, &str)]) -> Vec<(String, Direction)> {
        let files: Vec<FileChange> = files.iter().map(|(name, old, new)| file(name, old, new)).collect();
        let text = |change: ResourceChange| (format!("{} {change}", change.resource.name()), change.direction);
        resource_changes(&files).into_iter().map(text).collect()
    }

    #[test]
    fn resources_are_shown_as_in_a_pod_spec() {
        for (name, old, new, text, direction) in [
            ("memory.max", "67108864", "268435456", "memory 64Mi→256Mi", Direction::Up),
            ("memory.max", "max", "1000", "memory max→1000", Direction::Down),
            ("memory.swap.max", "0", "4096", "memory_swap 0→4Ki", Direction::Up),
            ("memory.high", "1048576", "max", "memory.high 1Mi→max", Direction::Up),
            ("cpu.max", "25000 100000", "50000", "cpu 250m→500m", Direction::Up),
            ("cpu.max", "200000 100000", "max 100000", "cpu 2→max", Direction::Up),
            ("cpu.weight", "100", "20", "cpu_weight 100→20", Direction::Down),
            ("cpuset.cpus", "0-1", "1", "cpuset_cpus 0-1→1", Direction::Other),
            ("pids.max", "max", "10", "pids.max max→10", Direction::Down),
            ("io.max", "", "8:0 rbps=1", "io.max →8:0 rbps=1", Direction::Other),
        ] {
            assert_eq!(changes(&[(name, old, new)]), [(text.to_owned(), direction)], "{name}");
        }
    }

    #[test]
    fn quota_and_period_of_v1_are_one_resource() {
        let (quota, period) = (("cpu.cfs_quota_us", "25000", "30000"), ("cpu.cfs_period_us", "100000", "50000"));
        assert_eq!(changes(&[quota, period]), [("cpu 250m→600m".to_owned(), Direction::Up)]);
        assert_eq!(changes(&[period, quota]), [("cpu 250m→600m".to_owned(), Direction::Up)]);
        assert_eq!(changes(&[quota]), [("cpu 25000us→30000us".to_owned(), Direction::Up)]);
        assert_eq!(changes(&[period]), [("cpu period 100000us→period 50000us".to_owned(), Direction::Other)]);
        let unlimited = ("cpu.cfs_quota_us", "-1", "50000");
        assert_eq!(changes(&[unlimited]), [("cpu max→50000us".to_owned(), Direction::Down)]);
    }
}
