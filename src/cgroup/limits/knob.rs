//! The files of a cgroup: their names, what their values mean, and how they are read and written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{fmt, io};

use model::resources::{Bytes, CpuSet, HugePageSize, UnifiedKey};
use serde::{Deserialize, Serialize};

use crate::layout::Version;
use crate::limits::memory_shrink::ShrinkTimeouts;
use crate::systemd::SyncError;

/// A file of a cgroup that holds one setting; the part before the first dot is its controller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Knob(Cow<'static, str>);

/// What the kernel said a set of knobs held at one moment; a knob that this host does not have is not in it.
pub type Values = BTreeMap<Knob, String>;

/// What was written to a file, and what it read right afterwards, in the kernel's own form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedValue {
    pub written: String,
    pub read_back: String,
}

/// Everything that was asked of one cgroup, by file.
pub type AppliedValues = BTreeMap<Knob, AppliedValue>;

/// One cgroup's files. The kernel's are behind [`crate::Cgroup`]; a test's may be in memory.
pub trait CgroupFs {
    /// Which set of files the cgroup has.
    fn version(&self) -> Version;
    /// Whether the cgroup is there at all.
    fn exists(&self) -> bool;
    /// The value without its final newline; `NotFound` where the host has no such file.
    fn read(&self, knob: &Knob) -> io::Result<String>;
    /// Hands `value` to the kernel in a single write.
    fn write(&self, knob: &Knob, value: &str) -> io::Result<()>;
    /// What to call the file in a message.
    fn location(&self, knob: &Knob) -> PathBuf;
    /// The sizes of huge pages that the host has.
    fn huge_page_sizes(&self) -> Vec<HugePageSize>;
    /// How long lowering memory may wait for it to be given back.
    fn shrink_timeouts(&self) -> ShrinkTimeouts {
        ShrinkTimeouts::default()
    }
    /// Tells whoever else writes these files what they hold now; most often there is nobody.
    fn sync_manager(&self, changed: &Values) -> Result<(), SyncError>;
}

/// A value of the kernel's that is not in the form its documentation gives.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{knob} holds {value:?}, which is not understood")]
pub struct Unreadable {
    pub knob: Knob,
    pub value: String,
}

impl Knob {
    pub const CFS_PERIOD: Knob = Knob::named("cpu.cfs_period_us");
    pub const CFS_QUOTA: Knob = Knob::named("cpu.cfs_quota_us");
    pub const CPU_SHARES: Knob = Knob::named("cpu.shares");
    pub const CPU_MAX: Knob = Knob::named("cpu.max");
    pub const CPU_WEIGHT: Knob = Knob::named("cpu.weight");
    pub const CPUSET_CPUS: Knob = Knob::named("cpuset.cpus");
    pub const CPUSET_MEMS: Knob = Knob::named("cpuset.mems");
    pub const MEMORY_LIMIT: Knob = Knob::named("memory.limit_in_bytes");
    pub const MEMSW_LIMIT: Knob = Knob::named("memory.memsw.limit_in_bytes");
    pub const MEMORY_MAX: Knob = Knob::named("memory.max");
    pub const MEMORY_CURRENT: Knob = Knob::named("memory.current");
    pub const MEMORY_HIGH: Knob = Knob::named("memory.high");
    pub const MEMORY_LOW: Knob = Knob::named("memory.low");
    pub const MEMORY_MIN: Knob = Knob::named("memory.min");
    pub const MEMORY_STAT: Knob = Knob::named("memory.stat");
    pub const MEMORY_RECLAIM: Knob = Knob::named("memory.reclaim");
    pub const MEMORY_USAGE: Knob = Knob::named("memory.usage_in_bytes");
    pub const MEMSW_USAGE: Knob = Knob::named("memory.memsw.usage_in_bytes");
    pub const SWAP_MAX: Knob = Knob::named("memory.swap.max");

    pub(crate) const fn named(file: &'static str) -> Knob {
        Knob(Cow::Borrowed(file))
    }

    /// The v1 limit of huge pages of one size.
    pub fn hugetlb_limit(size: &HugePageSize) -> Knob {
        Knob(Cow::Owned(format!("hugetlb.{}.limit_in_bytes", size.as_str())))
    }

    /// The v2 limit of huge pages of one size.
    pub fn hugetlb_max(size: &HugePageSize) -> Knob {
        Knob(Cow::Owned(format!("hugetlb.{}.max", size.as_str())))
    }

    /// The v2 limit of reservations of huge pages of one size: without it a process would learn of the limit by SIGBUS.
    pub fn hugetlb_reserved_max(size: &HugePageSize) -> Knob {
        Knob(Cow::Owned(format!("hugetlb.{}.rsvd.max", size.as_str())))
    }

    /// The file that a raw v2 setting names.
    pub fn unified(key: &UnifiedKey) -> Knob {
        Knob(Cow::Owned(key.as_str().to_owned()))
    }

    pub fn file(&self) -> &str {
        &self.0
    }

    pub fn controller(&self) -> &str {
        self.0.split('.').next().unwrap_or_default()
    }

    /// Whether it is a ceiling on memory that processes die of.
    pub(crate) fn is_memory_limit(&self) -> bool {
        [Self::MEMORY_LIMIT, Self::MEMSW_LIMIT, Self::MEMORY_MAX].contains(self)
    }

    /// Whether two texts are the same setting to the kernel.
    pub fn same(&self, a: &str, b: &str) -> bool {
        a.trim() == b.trim()
            || match self.unit() {
                Unit::Bytes { granule } => match (bytes(a), bytes(b)) {
                    (Some(a), Some(b)) => floor(a, granule) == floor(b, granule),
                    (None, _) | (_, None) => false,
                },
                Unit::Set => match (CpuSet::new(a), CpuSet::new(b)) {
                    (Ok(a), Ok(b)) => a == b,
                    (Err(_), _) | (_, Err(_)) => false,
                },
                Unit::Text | Unit::Opaque => false,
            }
    }

    /// Whether `found` is what the kernel should show after `wrote` was written; of `cpu.max` the quota may come alone.
    ///
    /// Files that only a raw v2 setting can name may show a value in a form of their own: there the kernel's word counts.
    pub fn kept(&self, wrote: &str, found: &str) -> bool {
        match self.unit() {
            Unit::Opaque => true,
            Unit::Text if *self == Self::CPU_MAX && !wrote.trim().contains(' ') => {
                found.split(' ').next() == Some(wrote.trim())
            }
            Unit::Bytes { .. } | Unit::Set | Unit::Text => self.same(wrote, found),
        }
    }

    /// The value as a limit in bytes, `None` for unlimited.
    pub(crate) fn limit(&self, value: &str) -> Result<Option<Bytes>, Unreadable> {
        bytes(value).map(|limit| limit.map(Bytes)).ok_or_else(|| self.unreadable(value))
    }

    /// The value as a number.
    pub(crate) fn number(&self, value: &str) -> Result<i64, Unreadable> {
        value.trim().parse().map_err(|_| self.unreadable(value))
    }

    pub(crate) fn unreadable(&self, value: &str) -> Unreadable {
        Unreadable { knob: self.clone(), value: value.to_owned() }
    }

    fn unit(&self) -> Unit {
        if let Some(rest) = self.file().strip_prefix("hugetlb.") {
            let size = rest.split('.').next().unwrap_or_default();
            return Unit::Bytes { granule: huge_page_bytes(size) };
        }
        match self.file() {
            "memory.limit_in_bytes"
            | "memory.memsw.limit_in_bytes"
            | "memory.max"
            | "memory.high"
            | "memory.low"
            | "memory.min"
            | "memory.swap.max"
            | "memory.swap.high" => Unit::Bytes { granule: page() },
            "cpuset.cpus" | "cpuset.mems" => Unit::Set,
            "cpu.cfs_period_us" | "cpu.cfs_quota_us" | "cpu.shares" | "cpu.max" | "cpu.weight" | "memory.oom.group"
            | "pids.max" => Unit::Text,
            _ => Unit::Opaque,
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How the kernel changes a value between writing and reading.
enum Unit {
    /// Rounded down to whole pages.
    Bytes { granule: u64 },
    /// Written in the kernel's own form.
    Set,
    /// Not at all.
    Text,
    /// Not known here.
    Opaque,
}

/// v1 shows "no limit" as the largest number of whole pages, which depends on the page size; no machine has as much.
pub(crate) const NO_LIMIT: u64 = 1 << 62;

/// Outer `None`: not a number of bytes; inner `None`: unlimited.
fn bytes(value: &str) -> Option<Option<u64>> {
    match value.trim() {
        "max" | "-1" => Some(None),
        number => memparse(number).map(|n| (n < NO_LIMIT).then_some(n)),
    }
}

/// A number as the kernel takes it for an amount of memory: hexadecimal, octal, and with a suffix for powers of 1024.
fn memparse(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        b'P' => (&text[..text.len() - 1], 50),
        // No suffix in a hexadecimal number.
        b'E' if !text.starts_with("0x") && !text.starts_with("0X") => (&text[..text.len() - 1], 60),
        _ => (text, 0),
    };
    let number = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(digits, 8)
    } else {
        digits.parse()
    };
    number.ok()?.checked_mul(1 << shift)
}

fn floor(bytes: Option<u64>, granule: u64) -> Option<u64> {
    bytes.map(|n| n - n % granule)
}

pub(crate) fn page() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(4096)
}

pub(crate) fn huge_page_bytes(size: &str) -> u64 {
    let digits = size.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &size[digits.len()..] {
        "KB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        _ => return page(),
    };
    digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|n| *n > 0).unwrap_or_else(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_compared_in_whole_pages() {
        assert!(Knob::MEMORY_MAX.same("1000001", "999424"));
        assert!(!Knob::MEMORY_MAX.same("1003520", "999424"));
        assert!(Knob::MEMORY_LIMIT.same("-1", "9223372036854771712\n"));
        assert!(!Knob::MEMORY_LIMIT.same("-1", "4096"));
        for text in ["64M", "64m", "65536k", "0x4000000", "0400000000"] {
            assert!(Knob::MEMORY_MAX.same(text, "67108864"), "{text}");
        }
        for text in ["", "M", "64X", "0x", "1.5G", "-2", "64 M", "99999999999E"] {
            assert!(Knob::MEMORY_MAX.limit(text).is_err(), "{text}");
        }
        assert!(Knob::hugetlb_max(&HugePageSize::new("2MB").unwrap()).same("3145728", "2097152"));
    }

    #[test]
    fn sets_are_compared_by_members() {
        assert!(Knob::CPUSET_CPUS.same("0,1,2", "0-2\n"));
        assert!(!Knob::CPUSET_CPUS.same("0,1,2", ""));
    }

    #[test]
    fn what_the_kernel_rewrites_in_its_own_form_is_taken_as_kept() {
        let io = Knob::unified(&UnifiedKey::new("io.max").unwrap());
        assert!(io.kept("8:0 rbps=1048576", "8:0 rbps=1048576 wbps=max riops=max wiops=max"));
        assert!(!Knob::CPU_WEIGHT.kept("100", "99"));
        assert!(Knob::CPU_MAX.kept("max", "max 100000") && Knob::CPU_MAX.kept("5000", "5000 100000"));
        assert!(!Knob::CPU_MAX.kept("5000", "max 100000") && !Knob::CPU_MAX.kept("5000 10000", "5000 100000"));
    }

    #[test]
    fn a_knob_knows_its_controller() {
        assert_eq!(Knob::MEMSW_LIMIT.controller(), "memory");
        assert_eq!(Knob::hugetlb_limit(&HugePageSize::new("1GB").unwrap()).file(), "hugetlb.1GB.limit_in_bytes");
    }
}
