//! Keeps the CPU quota of a new v1 cgroup within those of its ancestors.
//!
//! cgroup v1 refuses a quota above the parent's; v2 accepts it and enforces the lower one. If a
//! kubelet creates a container while it raises the pod, it writes the pod's quota after the
//! container's. If v1 refused the container, the kubelet would never raise the pod.

use std::path::Path;

use model::resources::{CpuPeriod, CpuQuota, LimitsPatch};

use crate::cgroup::Cgroup;
use crate::cgroupfs::read_once;
use crate::layout::Version;
use crate::limits::knob::Knob;

/// The kernel's default, if no other is requested.
const PERIOD: u64 = 100_000;

impl Cgroup {
    /// Returns `asked` with the limits that a new cgroup can have below its ancestors, and whether
    /// they are lower: on v1 the CPU quota is at most theirs.
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

/// Returns the quota that gives the same share of a CPU in another period, rounded down.
fn scaled((quota, of): (u64, u64), period: u64) -> u64 {
    let scaled = u128::from(quota) * u128::from(period) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_converted_to_another_period() {
        assert_eq!(scaled((8200, 100_000), 100_000), 8200);
        assert_eq!(scaled((8200, 100_000), 50_000), 4100);
        assert_eq!(scaled((1001, 3000), 1000), 333, "never more");
        assert_eq!(scaled((u64::MAX, 1), 1_000_000), u64::MAX);
    }
}
