//! Limits of containers: as requested ([`LimitsPatch`]) and as read from the kernel ([`ObservedLimits`]).
//!
//! Each unit has a type, whose constructor rejects values that the kernel would always reject.

mod cpu;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use cpu::{CpuPeriod, CpuQuota, CpuSet, CpuShares, CpuWeight, Micros};

/// A value that no kernel accepts, with its field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLimits {
    #[error("cpu_quota is {0}: must be -1 (unlimited) or at least 1000 microseconds")]
    CpuQuota(i64),
    #[error("cpu_period is {0}: must be 1000 to 1000000 microseconds")]
    CpuPeriod(i64),
    #[error("cpu_shares is {0}: must be 2 to 262144")]
    CpuShares(i64),
    #[error("cpu.weight is {0}: must be 1 to 10000")]
    CpuWeight(u64),
    #[error("{field} is {value}: must be -1 (unlimited) or positive")]
    Memory { field: &'static str, value: i64 },
    #[error("invalid list of CPUs or memory nodes {0:?}: expected a form like 0-3,7")]
    CpuSet(String),
    #[error("hugepage_limits.page_size is {0:?}: expected a form like 64KB, 2MB or 1GB")]
    HugePageSize(String),
    #[error("invalid key {0:?} in unified: must match [a-z0-9_.]+ and not start with \"cgroup.\"")]
    UnifiedKey(String),
    #[error("oom_score_adj is {0}: must be -1000 to 1000")]
    OomScoreAdj(i64),
}

/// An amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A limit on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryLimit {
    Unlimited,
    Bytes(Bytes),
}

impl MemoryLimit {
    /// Converts CRI's number of `field`: -1 is unlimited. Rejects 0, which means "not specified" in
    /// CRI: leave the field out instead.
    pub fn new(field: &'static str, value: i64) -> Result<Self, InvalidLimits> {
        match u64::try_from(value) {
            Ok(bytes @ 1..) => Ok(Self::Bytes(Bytes(bytes))),
            Err(_) if value == -1 => Ok(Self::Unlimited),
            Ok(_) | Err(_) => Err(InvalidLimits::Memory { field, value }),
        }
    }

    /// Returns the limit, or `None` if unlimited.
    pub fn bytes(self) -> Option<Bytes> {
        match self {
            Self::Unlimited => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// The size of a huge page as in the kernel's file names, for instance `2MB`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HugePageSize(String);

impl HugePageSize {
    pub fn new(text: &str) -> Result<Self, InvalidLimits> {
        let number = ["KB", "MB", "GB"].iter().find_map(|unit| text.strip_suffix(unit));
        match number {
            Some(n) if (1..=4).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_digit()) && !n.starts_with('0') => {
                Ok(Self(text.to_owned()))
            }
            Some(_) | None => Err(InvalidLimits::HugePageSize(text.to_owned())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a cgroup v2 resource file, for instance `memory.high`.
///
/// Files with the prefix `cgroup.` move, freeze and kill processes, so they are rejected.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnifiedKey(String);

impl UnifiedKey {
    pub fn new(text: &str) -> Result<Self, InvalidLimits> {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'.';
        let named = text.split_once('.').is_some_and(|(controller, rest)| {
            !controller.is_empty() && controller != "cgroup" && !rest.is_empty() && !rest.starts_with('.')
        });
        if named && text.bytes().all(legal) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidLimits::UnifiedKey(text.to_owned()))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The oom_score_adj of a process: a higher value makes an OOM kill more likely. 0 is a valid value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct OomScoreAdj(i16);

impl OomScoreAdj {
    pub fn new(value: i64) -> Result<Self, InvalidLimits> {
        match i16::try_from(value) {
            Ok(adj @ -1000..=1000) => Ok(Self(adj)),
            Ok(_) | Err(_) => Err(InvalidLimits::OomScoreAdj(value)),
        }
    }

    pub fn get(self) -> i16 {
        self.0
    }
}

/// Implements conversions that store a checked type as its plain type and check it again when read.
macro_rules! stored_as {
    ($plain:ty: $($checked:ident by $make:expr, $take:expr;)*) => {$(
        impl TryFrom<$plain> for $checked {
            type Error = InvalidLimits;
            fn try_from(value: $plain) -> Result<Self, InvalidLimits> {
                $make(value)
            }
        }

        impl From<$checked> for $plain {
            fn from(value: $checked) -> $plain {
                $take(value)
            }
        }
    )*};
}

stored_as! { i64:
    CpuPeriod by CpuPeriod::new, |period: CpuPeriod| i64::from(period.0);
    CpuShares by CpuShares::new, |shares: CpuShares| i64::from(shares.0);
    OomScoreAdj by OomScoreAdj::new, |adj: OomScoreAdj| i64::from(adj.0);
}
stored_as! { u64:
    CpuWeight by CpuWeight::new, |weight: CpuWeight| u64::from(weight.0);
}
stored_as! { String:
    CpuSet by |text: String| CpuSet::new(&text), |set: CpuSet| set.text;
    HugePageSize by |text: String| HugePageSize::new(&text), |size: HugePageSize| size.0;
    UnifiedKey by |text: String| UnifiedKey::new(&text), |key: UnifiedKey| key.0;
}

/// A change of a container's limits. A limit that is `None`, or not in a map, is not changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsPatch {
    pub cpu_quota: Option<CpuQuota>,
    pub cpu_period: Option<CpuPeriod>,
    pub cpu_shares: Option<CpuShares>,
    pub memory: Option<MemoryLimit>,
    /// Memory and swap together, as CRI and cgroup v1 count it.
    pub memory_swap: Option<MemoryLimit>,
    pub cpuset_cpus: Option<CpuSet>,
    pub cpuset_mems: Option<CpuSet>,
    /// A limit of 0 forbids pages of that size.
    pub hugepages: BTreeMap<HugePageSize, Bytes>,
    /// Raw cgroup v2 files and their values.
    pub unified: BTreeMap<UnifiedKey, String>,
    /// A setting of processes, not of a cgroup; applied separately.
    pub oom_score_adj: Option<OomScoreAdj>,
}

impl LimitsPatch {
    /// Returns this patch with every value that `later` sets.
    pub fn merged(mut self, later: &LimitsPatch) -> LimitsPatch {
        let LimitsPatch {
            cpu_quota,
            cpu_period,
            cpu_shares,
            memory,
            memory_swap,
            cpuset_cpus,
            cpuset_mems,
            hugepages,
            unified,
            oom_score_adj,
        } = later.clone();
        self.hugepages.extend(hugepages);
        self.unified.extend(unified);
        LimitsPatch {
            cpu_quota: cpu_quota.or(self.cpu_quota),
            cpu_period: cpu_period.or(self.cpu_period),
            cpu_shares: cpu_shares.or(self.cpu_shares),
            memory: memory.or(self.memory),
            memory_swap: memory_swap.or(self.memory_swap),
            cpuset_cpus: cpuset_cpus.or(self.cpuset_cpus),
            cpuset_mems: cpuset_mems.or(self.cpuset_mems),
            hugepages: self.hugepages,
            unified: self.unified,
            oom_score_adj: oom_score_adj.or(self.oom_score_adj),
        }
    }
}

/// The limits read from the kernel. `None`: no limit, or the host does not have the controller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedLimits {
    pub cpu_quota: Option<Micros>,
    pub cpu_period: Option<Micros>,
    /// Only on cgroup v1.
    pub cpu_shares: Option<CpuShares>,
    /// Only on cgroup v2.
    pub cpu_weight: Option<CpuWeight>,
    pub memory: Option<Bytes>,
    /// Memory and swap together.
    pub memory_swap: Option<Bytes>,
    pub cpuset_cpus: Option<CpuSet>,
    pub cpuset_mems: Option<CpuSet>,
    pub hugepages: BTreeMap<HugePageSize, Bytes>,
    /// A setting of the first process, not of a cgroup; filled in by a caller that has its pid.
    pub oom_score_adj: Option<OomScoreAdj>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_accepts_minus_one_as_unlimited_and_rejects_invalid_values() {
        assert_eq!(CpuQuota::new(-1), Ok(CpuQuota::Unlimited));
        assert_eq!(CpuQuota::new(1000), Ok(CpuQuota::Micros(Micros(1000))));
        for bad in [0, 999, -2, i64::MIN] {
            assert_eq!(CpuQuota::new(bad), Err(InvalidLimits::CpuQuota(bad)));
        }
    }

    #[test]
    fn ranges_equal_those_of_the_kernel() {
        assert!(CpuPeriod::new(1000).is_ok() && CpuPeriod::new(1_000_000).is_ok());
        assert!(CpuPeriod::new(999).is_err() && CpuPeriod::new(1_000_001).is_err());
        assert!(CpuShares::new(2).is_ok() && CpuShares::new(262_144).is_ok());
        assert!(CpuShares::new(1).is_err() && CpuShares::new(262_145).is_err());
        assert!(CpuWeight::new(1).is_ok() && CpuWeight::new(10_000).is_ok());
        assert!(CpuWeight::new(0).is_err() && CpuWeight::new(10_001).is_err());
        assert!(OomScoreAdj::new(-1000).is_ok() && OomScoreAdj::new(1001).is_err());
    }

    #[test]
    fn an_invalid_memory_limit_is_refused_with_its_field() {
        let refused = MemoryLimit::new("memory_limit_in_bytes", 0).unwrap_err();
        assert_eq!(refused.to_string(), "memory_limit_in_bytes is 0: must be -1 (unlimited) or positive");
    }

    #[test]
    fn cpu_sets_are_compared_by_their_members() {
        assert_eq!(CpuSet::new("0-3,7").unwrap(), CpuSet::new("7,2-3,0,1").unwrap());
        assert_ne!(CpuSet::new("0-3").unwrap(), CpuSet::new("0-4").unwrap());
        assert_eq!(CpuSet::new("7,0-1\n").unwrap().as_str(), "7,0-1");
        assert!(CpuSet::new("0-7").unwrap().contains(&CpuSet::new("0,3-5").unwrap()));
        assert!(!CpuSet::new("0-1,4-7").unwrap().contains(&CpuSet::new("0-4").unwrap()));
    }

    #[test]
    fn malformed_cpu_sets_are_refused() {
        for bad in ["", "a", "1-", "-1", "3-1", "1,,2", "1 2", "0-4294967295", "+1", "0-3\n1"] {
            assert!(CpuSet::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_unified_key_cannot_escape_its_cgroup_or_move_processes() {
        for good in ["memory.high", "hugetlb.2mb.max", "io.max", "memory.swap.max"] {
            assert!(UnifiedKey::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "memory",
            "../memory.max",
            "/memory.max",
            "a/b.c",
            "memory..max",
            ".memory",
            "cgroup.procs",
            "Memory.max",
            "memory.max\n",
        ] {
            assert!(UnifiedKey::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn huge_page_sizes_are_file_name_parts() {
        for good in ["64KB", "2MB", "1GB", "512MB"] {
            assert!(HugePageSize::new(good).is_ok(), "{good}");
        }
        for bad in ["", "MB", "2M", "2mb", "../2MB", "02MB", "2 MB", "20480MB"] {
            assert!(HugePageSize::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_later_patch_overrides_only_the_values_it_sets() {
        let first = LimitsPatch {
            memory: Some(MemoryLimit::Bytes(Bytes(1))),
            cpu_shares: Some(CpuShares::new(512).unwrap()),
            unified: [(UnifiedKey::new("memory.high").unwrap(), "max".to_owned())].into(),
            ..LimitsPatch::default()
        };
        let later = LimitsPatch {
            memory: Some(MemoryLimit::Bytes(Bytes(2))),
            unified: [(UnifiedKey::new("memory.low").unwrap(), "0".to_owned())].into(),
            ..LimitsPatch::default()
        };
        let both = first.merged(&later);
        assert_eq!(both.memory, Some(MemoryLimit::Bytes(Bytes(2))));
        assert_eq!(both.cpu_shares, Some(CpuShares::new(512).unwrap()));
        assert_eq!(both.unified.len(), 2);
    }
}
