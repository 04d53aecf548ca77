//! The cgroup files of a pod or container, with the requested, applied and current value of each.

use std::path::PathBuf;
use std::sync::Arc;

use cgroup::{Cgroup, CgroupFs as _, Knob, Layout, Version};
use model::CgroupPath;
use model::resources::LimitsPatch;
use serde::Serialize;

use super::units;
use super::verbose_info::VerboseInfo;

/// Why the files of a cgroup cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("detecting the host's cgroups")]
    Layout(#[from] cgroup::DetectError),
    #[error("the daemon returned an invalid cgroup path")]
    Path(#[from] model::InvalidCgroupPath),
}

/// One setting and its cgroup file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    /// Label shown to the user.
    pub(super) what: &'static str,
    pub(super) file: String,
    pub(super) path: PathBuf,
    pub(super) asked: Option<String>,
    pub(super) applied: Option<String>,
    /// Current content of the file.
    pub(super) actual: Option<String>,
    /// Whether the file was changed by something other than crisp since crisp wrote it.
    pub(super) drift: bool,
}

/// Returns the cgroup at `path`, in every hierarchy of this host.
pub(super) fn group(layout: &Arc<Layout>, path: &str) -> Result<Cgroup, FilesError> {
    Ok(Cgroup::new(Arc::clone(layout), CgroupPath::new(path)?))
}

pub(super) fn layout() -> Result<Arc<Layout>, FilesError> {
    Ok(Arc::new(Layout::detect()?))
}

/// Returns the rows to show: the files that every container has, and all others that were written or requested.
pub(super) fn rows(group: &Cgroup, info: &VerboseInfo) -> Vec<Row> {
    let version = group.layout().version();
    let mut knobs = usual(version);
    let named = info.applied.keys().filter_map(|file| knob(file));
    let more: Vec<Knob> =
        named.chain(cgroup::knobs(version, &info.asked)).filter(|knob| !knobs.contains(knob)).collect();
    knobs.extend(more);
    knobs.dedup();
    knobs.iter().filter_map(|knob| row(group, info, knob)).collect()
}

fn row(group: &Cgroup, info: &VerboseInfo, knob: &Knob) -> Option<Row> {
    let file = knob.file();
    let (asked, applied) = (requested(file, &info.asked), info.applied.get(file).cloned());
    let actual = group.read(knob).ok().map(|text| text.trim().to_owned());
    let known = asked.is_some() || applied.is_some() || actual.is_some();
    known.then(|| Row {
        what: setting(file),
        file: file.to_owned(),
        path: group.location(knob),
        asked,
        applied,
        actual,
        drift: info.drift.iter().any(|drift| drift.file == file),
    })
}

/// Returns the knob with this file name; settings of `unified` and huge pages have no constant.
fn knob(file: &str) -> Option<Knob> {
    serde_json::from_value(serde_json::Value::from(file)).ok()
}

fn usual(version: Version) -> Vec<Knob> {
    match version {
        Version::V1 => vec![
            Knob::CFS_QUOTA,
            Knob::CFS_PERIOD,
            Knob::CPU_SHARES,
            Knob::MEMORY_LIMIT,
            Knob::MEMSW_LIMIT,
            Knob::CPUSET_CPUS,
            Knob::CPUSET_MEMS,
        ],
        Version::V2 => vec![
            Knob::CPU_MAX,
            Knob::CPU_WEIGHT,
            Knob::MEMORY_MAX,
            Knob::SWAP_MAX,
            Knob::CPUSET_CPUS,
            Knob::CPUSET_MEMS,
        ],
    }
}

fn setting(file: &str) -> &'static str {
    match file {
        "cpu.cfs_quota_us" | "cpu.max" => "cpu limit",
        "cpu.cfs_period_us" => "cpu period",
        "cpu.shares" | "cpu.weight" => "cpu weight",
        "memory.limit_in_bytes" | "memory.max" => "memory",
        "memory.memsw.limit_in_bytes" => "memory + swap",
        "memory.swap.max" => "swap",
        "cpuset.cpus" => "cpus",
        "cpuset.mems" => "memory nodes",
        file if file.starts_with("hugetlb.") => "huge pages",
        _ => "unified",
    }
}

/// Returns the requested value for this file, in the notation of a pod spec where one exists.
pub(super) fn requested(file: &str, asked: &LimitsPatch) -> Option<String> {
    let swap = || asked.memory_swap.map(|limit| format!("{} with memory", units::memory(limit)));
    let named = match file {
        "cpu.cfs_quota_us" | "cpu.max" => asked.cpu_quota.map(|quota| units::cpus(quota, asked.cpu_period)),
        "cpu.cfs_period_us" => asked.cpu_period.map(|period| period.micros().0.to_string()),
        "cpu.shares" | "cpu.weight" => asked.cpu_shares.map(|shares| format!("{} shares", shares.get())),
        "memory.limit_in_bytes" | "memory.max" => asked.memory.map(units::memory),
        "memory.memsw.limit_in_bytes" => asked.memory_swap.map(units::memory),
        "memory.swap.max" => swap(),
        "cpuset.cpus" => asked.cpuset_cpus.as_ref().map(|set| set.as_str().to_owned()),
        "cpuset.mems" => asked.cpuset_mems.as_ref().map(|set| set.as_str().to_owned()),
        _ => None,
    };
    let huge = || {
        let pages = asked.hugepages.iter();
        let mut fitting = pages.filter(|(size, _)| file.starts_with(&format!("hugetlb.{}.", size.as_str())));
        fitting.next().map(|(_, limit)| units::bytes(limit.0))
    };
    let unified = || asked.unified.iter().find(|(key, _)| key.as_str() == file).map(|(_, value)| value.clone());
    unified().or(named).or_else(huge)
}

/// Formats the content of a file: adds units, and replaces huge values by "no limit".
pub(super) fn readable(file: &str, text: &str) -> String {
    match (file, text) {
        ("cpu.cfs_quota_us", "-1") => "-1 (no limit)".to_owned(),
        (file, text) if file.ends_with("_in_bytes") || file.starts_with("memory.") => match text.parse() {
            Ok(bytes) if units::bytes(bytes) == "no limit" => "no limit".to_owned(),
            Ok(bytes) if units::bytes(bytes) != text => format!("{text} ({})", units::bytes(bytes)),
            Ok(_) | Err(_) => text.to_owned(),
        },
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, CpuPeriod, CpuQuota, CpuShares, HugePageSize, MemoryLimit, Micros, UnifiedKey};

    use super::*;

    #[test]
    fn requested_values_are_found_by_file_name() {
        let asked = LimitsPatch {
            cpu_quota: Some(CpuQuota::Micros(Micros(50_000))),
            cpu_period: Some(CpuPeriod::new(100_000).unwrap()),
            cpu_shares: Some(CpuShares::new(512).unwrap()),
            memory: Some(MemoryLimit::Bytes(Bytes(64 << 20))),
            memory_swap: Some(MemoryLimit::Bytes(Bytes(64 << 20))),
            hugepages: [(HugePageSize::new("2MB").unwrap(), Bytes(4 << 20))].into(),
            unified: [(UnifiedKey::new("memory.high").unwrap(), "max".to_owned())].into(),
            ..LimitsPatch::default()
        };
        for (file, text) in [
            ("cpu.cfs_quota_us", "500m"),
            ("cpu.max", "500m"),
            ("cpu.weight", "512 shares"),
            ("memory.max", "64Mi"),
            ("memory.swap.max", "64Mi with memory"),
            ("hugetlb.2MB.rsvd.max", "4Mi"),
            ("memory.high", "max"),
        ] {
            assert_eq!(requested(file, &asked).as_deref(), Some(text), "{file}");
        }
        assert_eq!(requested("cpuset.cpus", &asked), None);
        assert_eq!(requested("memory.low", &asked), None);
    }

    #[test]
    fn file_contents_are_shown_with_units() {
        assert_eq!(readable("memory.limit_in_bytes", "9223372036854771712"), "no limit");
        assert_eq!(readable("memory.max", "67108864"), "67108864 (64Mi)");
        assert_eq!(readable("memory.max", "max"), "max");
        assert_eq!(readable("cpu.max", "50000 100000"), "50000 100000");
        assert_eq!(readable("cpu.cfs_quota_us", "-1"), "-1 (no limit)");
    }
}
