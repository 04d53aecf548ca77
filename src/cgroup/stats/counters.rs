//! All counters of the kernel for a cgroup.

use model::metrics::{DeviceIo, GroupCounters, HugePageUsage};

use super::read::{ReadBuffer, ReadError};
use super::{Sample, v1, v2};
use crate::cgroup::Cgroup;
use crate::layout::Version;
use crate::limits::knob::CgroupFs as _;

impl Cgroup {
    /// Returns [`usage`](Cgroup::usage) and all other counters, each file read once; `None` if the
    /// cgroup does not exist.
    pub fn counters(&self, scratch: &mut ReadBuffer) -> Result<Option<GroupCounters>, ReadError> {
        let Some(Sample { usage, mut cpu, mut memory }) = self.look(scratch)? else { return Ok(None) };
        let io: Vec<DeviceIo> = match self.layout().version() {
            Version::V1 => {
                v1::more_of_cpu(self, scratch, &mut cpu)?;
                v1::more_of_memory(self, scratch, &mut memory)?;
                v1::io(self, scratch)?
            }
            Version::V2 => {
                v2::more_of_memory(self, scratch, &mut memory)?;
                v2::io(self, scratch)?
            }
        };
        let (tasks, tasks_max) = self.task_numbers(scratch)?;
        let huge_pages = self.huge_pages(scratch)?;
        Ok(Some(GroupCounters { usage, cpu, memory, io, huge_pages, tasks, tasks_max }))
    }

    /// Returns the number of periods in which the CPU limit throttled the cgroup; `None` if the kernel does not count
    /// them.
    pub fn throttled_periods(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.dir_of("cpu")?.join("cpu.stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok())
    }

    fn task_numbers(&self, scratch: &mut ReadBuffer) -> Result<(Option<u64>, Option<u64>), ReadError> {
        let Some(dir) = self.dir_of("pids") else { return Ok((None, None)) };
        let tasks = scratch.number(&dir, "pids.current")?;
        let most = scratch.text(&dir, "pids.max")?.and_then(|text| match text.trim() {
            "max" => Some(0),
            number => number.parse().ok(),
        });
        Ok((tasks, most))
    }

    fn huge_pages(&self, scratch: &mut ReadBuffer) -> Result<Vec<HugePageUsage>, ReadError> {
        let Some(dir) = self.dir_of("hugetlb") else { return Ok(Vec::new()) };
        let mut list = Vec::new();
        for size in self.huge_page_sizes() {
            let name = size.as_str();
            // v2 has no peak here.
            let (usage, peak) = match self.layout().version() {
                Version::V1 => (format!("hugetlb.{name}.usage_in_bytes"), format!("hugetlb.{name}.max_usage_in_bytes")),
                Version::V2 => (format!("hugetlb.{name}.current"), String::new()),
            };
            if let Some(usage) = scratch.number(&dir, &usage)? {
                let peak = if peak.is_empty() { None } else { scratch.number(&dir, &peak)? };
                list.push(HugePageUsage { size: name.to_owned(), usage, peak });
            }
        }
        Ok(list)
    }
}
