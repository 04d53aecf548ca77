//! Requests and limits of a pod spec, the kubelet's values for them, and the values expected in the
//! kernel.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use cri_api::v1;

use crate::support::kernel_state;

/// The memory from which the kubelet computes the OOM score of a Burstable container.
const CAPACITY: i64 = 16 << 30;
/// The kubelet's period, also without a limit.
pub(super) const PERIOD: i64 = 100_000;

/// A request and a limit; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Span {
    pub(super) request: i64,
    pub(super) limit: i64,
}

impl Span {
    /// Whether the kubelet compares this as smaller: by the limit, and by the request if the limits
    /// are equal.
    pub(super) fn is_below(self, other: Self) -> bool {
        let endless = |limit| if limit == 0 { i64::MAX } else { limit };
        (endless(self.limit), self.request) < (endless(other.limit), other.request)
    }
}

/// A container's resources in its pod's spec: milli-CPUs and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shape {
    pub(super) cpu: Span,
    pub(super) memory: Span,
}

impl Shape {
    /// Milli-CPUs and MiB.
    pub(super) const fn guaranteed(cpu: i64, memory: i64) -> Self {
        Self::burstable((cpu, cpu), (memory, memory))
    }

    /// Request and limit, in milli-CPUs and MiB.
    pub(super) const fn burstable(cpu: (i64, i64), memory: (i64, i64)) -> Self {
        let cpu = Span { request: cpu.0, limit: cpu.1 };
        Self { cpu, memory: Span { request: memory.0 << 20, limit: memory.1 << 20 } }
    }

    /// The kubelet's request for the container, at its creation and in every resize.
    pub(super) fn resources(&self) -> v1::LinuxContainerResources {
        let cpu = self.cpu;
        v1::LinuxContainerResources {
            cpu_period: PERIOD,
            cpu_quota: quota(cpu.limit),
            cpu_shares: shares(if cpu.request > 0 { cpu.request } else { cpu.limit }),
            oom_score_adj: self.oom_score(),
            hugepage_limits: no_huge_pages(),
            unified: self.unified(),
            ..memory_limit(self.memory.limit)
        }
    }

    fn is_guaranteed(&self) -> bool {
        let full = |span: Span| span.limit > 0 && span.request == span.limit;
        full(self.cpu) && full(self.memory)
    }

    fn oom_score(&self) -> i64 {
        if self.is_guaranteed() {
            return -997;
        }
        if *self == Self::default() {
            return 1000;
        }
        (1000 - 1000 * self.memory.request / CAPACITY).clamp(3, 999)
    }

    fn unified(&self) -> BTreeMap<String, String> {
        if !kernel_state::is_v2() {
            return BTreeMap::new();
        }
        let request = self.memory.request.to_string();
        let (min, low) = if self.is_guaranteed() { (request, "0".into()) } else { ("0".into(), request) };
        [("memory.oom.group", "1".into()), ("memory.swap.max", "0".into()), ("memory.min", min), ("memory.low", low)]
            .map(|(name, value): (&str, String)| (name.to_owned(), value))
            .into()
    }
}

/// A memory limit alone; where memory and swap are limited together, the kubelet sets both to it.
pub(super) fn memory_limit(bytes: i64) -> v1::LinuxContainerResources {
    let with_swap = kernel_state::cgroup_dir("memory", "/").join("memory.memsw.limit_in_bytes").exists();
    v1::LinuxContainerResources {
        memory_limit_in_bytes: bytes,
        memory_swap_limit_in_bytes: if with_swap { bytes } else { 0 },
        ..Default::default()
    }
}

/// The shares of this many milli-CPUs.
pub(super) fn shares(cpu: i64) -> i64 {
    (cpu * 1024 / 1000).clamp(2, 262_144)
}

/// The quota of this many milli-CPUs.
pub(super) fn quota(cpu: i64) -> i64 {
    if cpu == 0 { 0 } else { (cpu * PERIOD / 1000).max(1000) }
}

/// Returns a request without its empty fields.
pub(super) fn in_words(asked: &v1::LinuxContainerResources) -> String {
    let all = format!("{asked:?}");
    let empty = format!("{:?}", v1::LinuxContainerResources::default());
    let left_out: Vec<&str> = fields(&empty).collect();
    fields(&all).filter(|field| !left_out.contains(field)).collect::<Vec<_>>().join(", ")
}

fn fields(text: &str) -> impl Iterator<Item = &str> {
    let inner = text.split_once(" { ").and_then(|(_, rest)| rest.strip_suffix(" }")).unwrap_or_default();
    inner.split(", ")
}

/// One entry for every size of the machine, as the kubelet sends it in every update.
pub(super) fn no_huge_pages() -> Vec<v1::HugepageLimit> {
    let mut limits = Vec::new();
    for entry in fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let size = name.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB")).map(str::parse::<u64>);
        if let Some(Ok(kib)) = size {
            let page_size = if kib < 1 << 20 { format!("{}MB", kib >> 10) } else { format!("{}GB", kib >> 20) };
            limits.push(v1::HugepageLimit { page_size, limit: 0 });
        }
    }
    limits
}

/// The limits that must be active: everything that was requested. 0 and "" are not requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Limits {
    pub(super) shares: i64,
    /// -1 is unlimited.
    pub(super) quota: i64,
    pub(super) period: i64,
    pub(super) memory: i64,
    pub(super) cpuset: String,
}

impl Limits {
    pub(super) fn of(resources: &v1::LinuxContainerResources) -> Self {
        Self::default().after(resources)
    }

    /// A patch keeps the values that it omits.
    pub(super) fn after(&self, patch: &v1::LinuxContainerResources) -> Self {
        let or = |new, old| if new == 0 { old } else { new };
        let cpuset = if patch.cpuset_cpus.is_empty() { &self.cpuset } else { &patch.cpuset_cpus };
        Self {
            shares: or(patch.cpu_shares, self.shares),
            quota: or(patch.cpu_quota, self.quota),
            period: or(patch.cpu_period, self.period),
            memory: or(patch.memory_limit_in_bytes, self.memory),
            cpuset: cpuset.clone(),
        }
    }

    /// The files of the container's cgroup, and the accepted values of each.
    pub(super) fn files(&self) -> Vec<File> {
        let v2 = kernel_state::is_v2();
        let mut files = Vec::new();
        let mut add = |controller, name, holds: Vec<String>| files.push(File { controller, name, holds });
        let limited = self.quota > 0;
        let (period, quota) = (if self.period == 0 { PERIOD } else { self.period }, self.quota);
        if self.shares > 0 && v2 {
            add("cpu", "cpu.weight", weights(self.shares));
        } else if self.shares > 0 {
            add("cpu", "cpu.shares", vec![self.shares.to_string()]);
        }
        if v2 {
            let quota = if limited { quota.to_string() } else { "max".to_owned() };
            add("cpu", "cpu.max", vec![format!("{quota} {period}")]);
        } else {
            add("cpu", "cpu.cfs_quota_us", vec![if limited { quota } else { -1 }.to_string()]);
            add("cpu", "cpu.cfs_period_us", vec![period.to_string()]);
        }
        let pages = i64::try_from(rustix::param::page_size()).unwrap();
        let memory = self.memory / pages * pages;
        match (v2, memory) {
            (true, 0) => add("memory", "memory.max", vec!["max".to_owned()]),
            (true, _) => add("memory", "memory.max", vec![memory.to_string()]),
            (false, 0) => add("memory", "memory.limit_in_bytes", vec![(i64::MAX / pages * pages).to_string()]),
            (false, _) => add("memory", "memory.limit_in_bytes", vec![memory.to_string()]),
        }
        if !self.cpuset.is_empty() {
            add("cpuset", "cpuset.cpus", vec![self.cpuset.clone()]);
        }
        files
    }
}

/// A file of a cgroup, and every accepted value.
#[derive(Debug)]
pub(super) struct File {
    pub(super) controller: &'static str,
    pub(super) name: &'static str,
    pub(super) holds: Vec<String>,
}

impl File {
    pub(super) fn on_host(&self, cgroup: &str) -> std::path::PathBuf {
        kernel_state::cgroup_dir(self.controller, cgroup).join(self.name)
    }

    /// The path at which the kubelet's own tests read it.
    pub(super) fn inside(&self) -> String {
        let dir = Path::new("/sys/fs/cgroup");
        let dir = if kernel_state::is_v2() { dir.to_owned() } else { dir.join(self.controller) };
        dir.join(self.name).display().to_string()
    }
}

/// The weight of these shares, by the kubelet's formula and by that of recent low-level runtimes.
fn weights(shares: i64) -> Vec<String> {
    let linear = 1 + (shares - 2) * 9999 / 262_142;
    let log = f64::from(i32::try_from(shares).unwrap()).log2();
    let curved = 10_f64.powf((log * log + 125.0 * log) / 612.0 - 7.0 / 34.0).ceil();
    vec![linear.to_string(), format!("{curved}")]
}
