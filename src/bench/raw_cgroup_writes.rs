//! Measures the reads and writes of cgroup files in a resize without a runtime.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::time::Instant;

use cgroup::{Cgroup, CgroupFs as _, Change, Knob};
use model::resources::{Bytes, CpuPeriod, CpuQuota, CpuShares, InvalidLimits, LimitsPatch, MemoryLimit, Micros};

use super::reads::{UPDATE_CPU, UPDATE_MEMORY};
use super::report::results::{Figures, Unit};

/// A cgroup that is changed directly, with the same values as the runtimes get.
#[derive(Debug)]
pub(super) struct RawWrites {
    group: Option<Cgroup>,
    pub(super) figures: Figures,
}

pub(super) fn patch(millis: u64, mib: u64) -> io::Result<LimitsPatch> {
    let odd = io::Error::other::<InvalidLimits>;
    Ok(LimitsPatch {
        cpu_quota: Some(CpuQuota::Micros(Micros(millis * 100))),
        cpu_period: Some(CpuPeriod::new(100_000).map_err(odd)?),
        cpu_shares: Some(CpuShares::new(i64::try_from(millis).unwrap_or(1024)).map_err(odd)?),
        memory: Some(MemoryLimit::Bytes(Bytes(mib << 20))),
        ..LimitsPatch::default()
    })
}

impl RawWrites {
    /// Uses `group`, which belongs to the benchmark; without a group nothing is measured.
    pub(super) fn new(group: Option<Cgroup>) -> Self {
        Self { group, figures: Figures::default() }
    }

    /// Measures the changes.
    pub(super) fn measure(&mut self, times: u32) {
        let Some(group) = self.group.take() else { return };
        if let Err(error) = self.changes(&group, times) {
            self.figures.fail(UPDATE_MEMORY, Unit::Ms, &error);
        }
        self.group = Some(group);
    }

    fn changes(&mut self, group: &Cgroup, times: u32) -> io::Result<()> {
        group.apply(&patch(200, 64)?).map_err(io::Error::other)?;
        for _ in 0..times {
            for (name, to) in [
                (Some(UPDATE_MEMORY), patch(200, 96)?),
                (Some(UPDATE_CPU), patch(300, 96)?),
                (None, patch(300, 64)?),
                (None, patch(200, 64)?),
            ] {
                let knobs = cgroup::knobs(group.version(), &to);
                let change = cgroup::prepare(group, &to).map_err(io::Error::other)?;
                let begin = Instant::now();
                by_hand(group, &knobs, &change)?;
                if let Some(name) = name {
                    self.figures.add_time(name, begin.elapsed());
                }
            }
        }
        Ok(())
    }
}

/// Reads the current values, writes the new ones, and reads them back.
fn by_hand(group: &Cgroup, knobs: &[Knob], change: &Change) -> io::Result<()> {
    for knob in knobs {
        match fs::read_to_string(group.location(knob)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => drop(other?),
        }
    }
    for write in &change.writes {
        File::options().write(true).open(group.location(&write.knob))?.write_all(write.want.text().as_bytes())?;
    }
    change.writes.iter().try_for_each(|write| fs::read_to_string(group.location(&write.knob)).map(drop))
}
