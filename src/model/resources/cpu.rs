//! CPU time, weights and sets of CPUs or memory nodes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::InvalidLimits;

/// A span of CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Micros(pub u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The CPU time that a cgroup may use in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CpuQuota {
    Unlimited,
    Micros(Micros),
}

impl CpuQuota {
    /// Converts CRI's number: -1 is unlimited. Rejects 0, which means "not specified" in CRI: leave
    /// the field out instead.
    pub fn new(value: i64) -> Result<Self, InvalidLimits> {
        match u64::try_from(value) {
            Ok(micros @ 1000..) => Ok(Self::Micros(Micros(micros))),
            Err(_) if value == -1 => Ok(Self::Unlimited),
            Ok(_) | Err(_) => Err(InvalidLimits::CpuQuota(value)),
        }
    }
}

/// The length of the period of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct CpuPeriod(pub(super) u32);

impl CpuPeriod {
    pub fn new(value: i64) -> Result<Self, InvalidLimits> {
        match u32::try_from(value) {
            Ok(micros @ 1000..=1_000_000) => Ok(Self(micros)),
            Ok(_) | Err(_) => Err(InvalidLimits::CpuPeriod(value)),
        }
    }

    pub fn micros(self) -> Micros {
        Micros(u64::from(self.0))
    }
}

/// The CPU weight of a cgroup relative to its siblings in units of cgroup v1 and CRI; one CPU is 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct CpuShares(pub(super) u32);

impl CpuShares {
    /// Rejects values outside the range, which the kernel would silently clamp.
    pub fn new(value: i64) -> Result<Self, InvalidLimits> {
        match u32::try_from(value) {
            Ok(shares @ 2..=262_144) => Ok(Self(shares)),
            Ok(_) | Err(_) => Err(InvalidLimits::CpuShares(value)),
        }
    }

    pub fn get(self) -> u32 {
        self.0
    }
}

/// The CPU weight of a cgroup relative to its siblings in units of cgroup v2; the default is 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct CpuWeight(pub(super) u16);

impl CpuWeight {
    pub fn new(value: u64) -> Result<Self, InvalidLimits> {
        match u16::try_from(value) {
            Ok(weight @ 1..=10_000) => Ok(Self(weight)),
            Ok(_) | Err(_) => Err(InvalidLimits::CpuWeight(value)),
        }
    }

    pub fn get(self) -> u16 {
        self.0
    }
}

/// A non-empty set of CPUs or memory nodes with its original text, for instance `0-3,7`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet {
    pub(super) text: String,
    ranges: Vec<(u32, u32)>,
}

impl CpuSet {
    /// The largest accepted number: above any kernel's maximum, and `+ 1` cannot overflow.
    const MAX: u32 = 1 << 20;

    pub fn new(text: &str) -> Result<Self, InvalidLimits> {
        let text = text.trim();
        let mut ranges = text
            .split(',')
            .map(|part| {
                let (low, high) = part.split_once('-').unwrap_or((part, part));
                Some((index(low)?, index(high)?)).filter(|(low, high)| low <= high)
            })
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| InvalidLimits::CpuSet(text.to_owned()))?;
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (low, high) in ranges {
            match merged.last_mut() {
                Some(last) if low <= last.1 + 1 => last.1 = last.1.max(high),
                Some(_) | None => merged.push((low, high)),
            }
        }
        Ok(Self { text: text.to_owned(), ranges: merged })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether every member of `other` is also in this set.
    pub fn contains(&self, other: &CpuSet) -> bool {
        let within = |&(low, high): &(u32, u32)| self.ranges.iter().any(|r| r.0 <= low && high <= r.1);
        other.ranges.iter().all(within)
    }

    /// Iterates over all members in ascending order.
    pub fn members(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().flat_map(|&(low, high)| low..=high)
    }
}

fn index(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|n| *n <= CpuSet::MAX)
}

/// Two sets are equal if they have the same members; their texts may differ.
impl PartialEq for CpuSet {
    fn eq(&self, other: &Self) -> bool {
        self.ranges == other.ranges
    }
}

impl Eq for CpuSet {}
