//! What a change costs at the least: the reads and writes of files that it is made of, and nothing else.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::time::Instant;

use cgroup::{Cgroup, CgroupFs as _, Change, Knob};
use model::resources::{Bytes, CpuPeriod, CpuQuota, CpuShares, LimitsPatch, MemoryLimit, Micros};

use super::figures::Figures;
use super::parent::Parent;

fn patch(millis: u64, mib: u64) -> io::Result<LimitsPatch> {
    let odd = io::Error::other::<model::resources::InvalidLimits>;
    Ok(LimitsPatch {
        cpu_quota: Some(CpuQuota::Micros(Micros(millis * 100))),
        cpu_period: Some(CpuPeriod::new(100_000).map_err(odd)?),
        cpu_shares: Some(CpuShares::new(i64::try_from(millis).unwrap_or(1024)).map_err(odd)?),
        memory: Some(MemoryLimit::Bytes(Bytes(mib << 20))),
        ..LimitsPatch::default()
    })
}

/// Times the same changes as those that are asked of the runtimes, done by hand.
pub(super) fn measure(parent: &Parent, figures: &mut Figures, times: usize) -> io::Result<()> {
    let group = parent.child("bare")?;
    group.apply(&patch(200, 64)?).map_err(io::Error::other)?;
    for _ in 0..times {
        for (name, to) in [
            ("bare files: memory ms", patch(200, 96)?),
            ("bare files: cpu ms", patch(300, 96)?),
            ("", patch(300, 64)?),
            ("", patch(200, 64)?),
        ] {
            let knobs = cgroup::knobs(group.version(), &to);
            let change = cgroup::prepare(&group, &to).map_err(io::Error::other)?;
            let begin = Instant::now();
            by_hand(&group, &knobs, &change)?;
            if !name.is_empty() {
                figures.add_time(name, begin.elapsed());
            }
        }
    }
    Ok(())
}

/// Reads what is in force, writes what changes, and reads that back.
fn by_hand(group: &Cgroup, knobs: &[Knob], change: &Change) -> io::Result<()> {
    for knob in knobs {
        match fs::read_to_string(group.location(knob)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => drop(other?),
        }
    }
    for write in &change.writes {
        File::options().write(true).open(group.location(&write.knob))?.write_all(write.want.as_bytes())?;
    }
    change.writes.iter().try_for_each(|write| fs::read_to_string(group.location(&write.knob)).map(drop))
}
