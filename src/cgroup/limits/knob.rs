//! The files of a cgroup: names, forms of their values, reading and writing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{fmt, io};

use model::resources::{Bytes, HugePageSize, UnifiedKey};
use serde::{Deserialize, Serialize};

use crate::layout::Version;
use crate::limits::memory_shrink::ShrinkTimeouts;
use crate::limits::value::{Form, KnobValue, Value};
use crate::systemd::SyncError;

/// A file of a cgroup that holds one setting; the part before the first dot is its controller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Knob(Cow<'static, str>);

/// Values of some knobs in the kernel, read together; without knobs that this host does not have.
pub type Values = BTreeMap<Knob, KnobValue>;

/// The text written to a file, and the text read back right afterwards. For reports: a later reading is
/// parsed only if it differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedValue {
    pub written: String,
    pub read_back: String,
}

/// All requested values of one cgroup, by file.
pub type AppliedValues = BTreeMap<Knob, AppliedValue>;

/// The files of one cgroup: the kernel's ([`crate::Cgroup`]), or in memory for tests.
pub trait CgroupFs {
    /// The version, which decides the set of files.
    fn version(&self) -> Version;
    /// Whether the cgroup exists.
    fn exists(&self) -> bool;
    /// The value without its final newline; `NotFound` where the host has no such file.
    fn read(&self, knob: &Knob) -> io::Result<String>;
    /// Writes `value` in a single write(2).
    fn write(&self, knob: &Knob, value: &str) -> io::Result<()>;
    /// The name of the file in messages.
    fn location(&self, knob: &Knob) -> PathBuf;
    /// The sizes of huge pages that the host has.
    fn huge_page_sizes(&self) -> Vec<HugePageSize>;
    /// Time limits for the reclaim before memory is lowered.
    fn shrink_timeouts(&self) -> ShrinkTimeouts {
        ShrinkTimeouts::default()
    }
    /// Sends the current values of these files to systemd; does nothing with the cgroupfs driver.
    fn sync_manager(&self, changed: &Values) -> Result<(), SyncError>;
}

/// A value that does not have the form in the kernel's documentation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the cgroup file {knob} has an unexpected value: {value:?}")]
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
    pub(crate) const CPUSET_EFFECTIVE_V1: Knob = Knob::named("cpuset.effective_cpus");
    pub(crate) const CPUSET_EFFECTIVE_V2: Knob = Knob::named("cpuset.cpus.effective");
    pub(crate) const MEMORY_EVENTS_LOCAL: Knob = Knob::named("memory.events.local");
    pub(crate) const MEMORY_FAILCNT: Knob = Knob::named("memory.failcnt");
    pub(crate) const MEMSW_FAILCNT: Knob = Knob::named("memory.memsw.failcnt");
    pub(crate) const KERNEL_USAGE: Knob = Knob::named("memory.kmem.usage_in_bytes");
    pub(crate) const PIDS_CURRENT: Knob = Knob::named("pids.current");
    pub(crate) const PIDS_MAX: Knob = Knob::named("pids.max");

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

    /// The v2 limit of reserved huge pages of one size: without it, a process above the limit gets
    /// SIGBUS.
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

    /// Whether this is a memory limit that causes OOM kills.
    pub(crate) fn is_memory_limit(&self) -> bool {
        [Self::MEMORY_LIMIT, Self::MEMSW_LIMIT, Self::MEMORY_MAX].contains(self)
    }

    /// Parses a value that was read or that is to be written.
    pub fn value(&self, text: impl Into<String>) -> KnobValue {
        KnobValue::parse(self.form(), text)
    }

    /// Returns whether both values are the same setting for the kernel.
    pub fn same(&self, a: &KnobValue, b: &KnobValue) -> bool {
        a.same(b, self.form())
    }

    /// Returns whether the kernel shows `found` after `written` was written. A quota written to
    /// `cpu.max` without a period keeps the old period. A file with an opaque form, which only
    /// `unified` can name, may show any text.
    pub fn kept(&self, written: &KnobValue, found: &KnobValue) -> bool {
        match (self.form(), written.value(), found.value()) {
            (Form::Opaque, _, _) => true,
            (_, Value::Bandwidth { quota, period: None }, Value::Bandwidth { quota: found, .. }) => quota == found,
            _ => self.same(written, found),
        }
    }

    /// Returns the value as a limit in bytes, `None` for unlimited.
    pub(crate) fn limit(&self, value: &KnobValue) -> Result<Option<Bytes>, Unreadable> {
        value.limit().ok_or_else(|| self.unreadable(value))
    }

    /// Returns the value as a number, `None` for unlimited.
    pub(crate) fn number(&self, value: &KnobValue) -> Result<Option<u64>, Unreadable> {
        match value.value() {
            Value::Number(n) => Ok(Some(*n)),
            Value::Unlimited => Ok(None),
            Value::Bandwidth { .. } | Value::Set(_) | Value::Text => Err(self.unreadable(value)),
        }
    }

    pub(crate) fn unreadable(&self, value: &KnobValue) -> Unreadable {
        Unreadable { knob: self.clone(), value: value.text().to_owned() }
    }

    fn form(&self) -> Form {
        if let Some(rest) = self.file().strip_prefix("hugetlb.") {
            let size = rest.split('.').next().unwrap_or_default();
            return Form::Bytes { granule: huge_page_bytes(size) };
        }
        match self.file() {
            "memory.limit_in_bytes"
            | "memory.memsw.limit_in_bytes"
            | "memory.max"
            | "memory.high"
            | "memory.low"
            | "memory.min"
            | "memory.swap.max"
            | "memory.swap.high" => Form::Bytes { granule: page() },
            "cpuset.cpus" | "cpuset.mems" => Form::Set,
            "cpu.max" => Form::Bandwidth,
            "cpu.cfs_period_us" | "cpu.cfs_quota_us" | "cpu.shares" | "cpu.weight" | "memory.oom.group"
            | "pids.max" => Form::Number,
            _ => Form::Opaque,
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
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

    fn same(knob: &Knob, a: &str, b: &str) -> bool {
        knob.same(&knob.value(a), &knob.value(b))
    }

    fn kept(knob: &Knob, written: &str, found: &str) -> bool {
        knob.kept(&knob.value(written), &knob.value(found))
    }

    #[test]
    fn memory_is_compared_in_whole_pages() {
        assert!(same(&Knob::MEMORY_MAX, "1000001", "999424"));
        assert!(!same(&Knob::MEMORY_MAX, "1003520", "999424"));
        assert!(same(&Knob::MEMORY_LIMIT, "-1", "9223372036854771712\n"));
        assert!(!same(&Knob::MEMORY_LIMIT, "-1", "4096"));
        for text in ["64M", "64m", "65536k", "0x4000000", "0400000000"] {
            assert!(same(&Knob::MEMORY_MAX, text, "67108864"), "{text}");
        }
        for text in ["", "M", "64X", "0x", "1.5G", "-2", "64 M", "99999999999E"] {
            assert!(Knob::MEMORY_MAX.limit(&Knob::MEMORY_MAX.value(text)).is_err(), "{text}");
        }
        assert!(same(&Knob::hugetlb_max(&HugePageSize::new("2MB").unwrap()), "3145728", "2097152"));
    }

    #[test]
    fn sets_are_compared_by_members() {
        assert!(same(&Knob::CPUSET_CPUS, "0,1,2", "0-2\n"));
        assert!(!same(&Knob::CPUSET_CPUS, "0,1,2", ""));
        assert!(same(&Knob::CPUSET_CPUS, "", "\n"));
    }

    #[test]
    fn damaged_values_are_compared_as_text() {
        assert!(same(&Knob::MEMORY_MAX, "lots", "lots"));
        assert!(!same(&Knob::MEMORY_MAX, "lots", "many"));
        assert!(!same(&Knob::CPU_WEIGHT, "heavy", "100"));
    }

    #[test]
    fn a_value_that_the_kernel_shows_in_another_form_is_kept() {
        let io = Knob::unified(&UnifiedKey::new("io.max").unwrap());
        assert!(kept(&io, "8:0 rbps=1048576", "8:0 rbps=1048576 wbps=max riops=max wiops=max"));
        assert!(!kept(&Knob::CPU_WEIGHT, "100", "99"));
        assert!(kept(&Knob::CPU_MAX, "max", "max 100000") && kept(&Knob::CPU_MAX, "5000", "5000 100000"));
        assert!(!kept(&Knob::CPU_MAX, "5000", "max 100000") && !kept(&Knob::CPU_MAX, "5000 10000", "5000 100000"));
    }

    #[test]
    fn a_knob_has_the_controller_of_its_file() {
        assert_eq!(Knob::MEMSW_LIMIT.controller(), "memory");
        assert_eq!(Knob::hugetlb_limit(&HugePageSize::new("1GB").unwrap()).file(), "hugetlb.1GB.limit_in_bytes");
    }
}
