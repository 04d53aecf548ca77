//! Limits that fit under those above.
//!
//! cgroup v1 refuses a CPU quota that is more than the one above allows; v2 takes it, and the
//! smaller one counts. A kubelet that makes a container while its pod is being raised writes the
//! pod's after the container's, and one that were refused would never come to that.

use std::path::Path;

use model::resources::{CpuPeriod, CpuQuota, LimitsPatch};

use crate::cgroup::Cgroup;
use crate::cgroupfs::read_once;
use crate::layout::Version;
use crate::limits::knob::Knob;

/// The kernel's default, if no other is requested.
const PERIOD: u64 = 100_000;

impl Cgroup {
    /// The limits that a new cgroup can have under those above it, and whether they are less than
    /// `asked`: on v1 a CPU quota is held at what is allowed there.
    pub fn clamp_to_ancestors(&self, asked: &LimitsPatch) -> (LimitsPatch, bool) {
        let mut patch = asked.clone();
        let (Version::V1, Some(CpuQuota::Micros(quota))) = (self.layout().version(), asked.cpu_quota) else {
            return (patch, false);
        };
        let period = asked.cpu_period.map_or(PERIOD, |period: CpuPeriod| period.micros().0);
        let dir = self.dir_of("cpu");
        let above = dir.iter().flat_map(|dir| dir.ancestors().skip(1)).map_while(bandwidth);
        let most = above.flatten().map(|above| scaled(above, period)).min();
        let held = most.filter(|most| *most < quota.0).and_then(|most| CpuQuota::new(i64::try_from(most).ok()?).ok());
        patch.cpu_quota = held.or(asked.cpu_quota);
        (patch, held.is_some())
    }
}

/// Returns quota and period of a directory; the inner `None` means unlimited. `None` for the root
/// and for directories that are not cgroups, which have no quota.
fn bandwidth(dir: &Path) -> Option<Option<(u64, u64)>> {
    let read = |knob: Knob| read_once(&dir.join(knob.file()), None).ok()?.trim().parse::<i64>().ok();
    let (quota, period) = (read(Knob::CFS_QUOTA)?, read(Knob::CFS_PERIOD)?);
    Some(u64::try_from(quota).ok().zip(u64::try_from(period).ok().filter(|period| *period > 0)))
}

/// The quota in another period that is as much of a CPU, and no more.
fn scaled((quota, of): (u64, u64), period: u64) -> u64 {
    let scaled = u128::from(quota) * u128::from(period) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_as_much_of_a_cpu_in_another_period() {
        assert_eq!(scaled((8200, 100_000), 100_000), 8200);
        assert_eq!(scaled((8200, 100_000), 50_000), 4100);
        assert_eq!(scaled((1001, 3000), 1000), 333, "never more");
        assert_eq!(scaled((u64::MAX, 1), 1_000_000), u64::MAX);
    }
}
