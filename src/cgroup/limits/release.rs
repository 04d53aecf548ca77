//! Releases the limits of an exited container, which keeps its cgroup for statistics until it is
//! removed.
//!
//! Some limits restrict the parent cgroup even without a process. On v1 the kernel refuses a
//! parent's CPU quota below that of a child, and a parent's cpuset without the child's CPUs. On v2
//! `memory.min` and `memory.low` protect the page cache of the exited container against its
//! siblings.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::cgroup::Cgroup;
use crate::cgroupfs::gone;
use crate::layout::Version;
use crate::limits::knob::{CgroupFs, Knob};

/// A limit that restricts the parent, and the value that does not.
static V1: [(Knob, &str); 3] = [(Knob::CFS_QUOTA, "-1"), (Knob::CPUSET_CPUS, ""), (Knob::CPUSET_MEMS, "")];
static V2: [(Knob, &str); 2] = [(Knob::MEMORY_MIN, "0"), (Knob::MEMORY_LOW, "0")];

/// A limit of an exited container that still restricts the parent cgroup.
#[derive(Debug, thiserror::Error)]
#[error("releasing a limit of an exited container: writing {value:?} to {file}")]
pub struct ReleaseError {
    pub file: PathBuf,
    pub value: &'static str,
    pub source: io::Error,
}

impl Cgroup {
    /// Lifts the limits that restrict the parent cgroup; other limits and the statistics stay.
    /// Tries all of them and returns the first error; a missing cgroup is not one. systemd is not
    /// notified: it removes the scope of an exited container.
    pub fn release_parent(&self) -> Result<(), ReleaseError> {
        release(self)
    }
}

fn release(fs: &impl CgroupFs) -> Result<(), ReleaseError> {
    let binding: &'static [(Knob, &'static str)] = match fs.version() {
        Version::V1 => &V1,
        Version::V2 => &V2,
    };
    let mut outcome = Ok(());
    for (knob, value) in binding {
        let released = match fs.read(knob) {
            Ok(found) if knob.same(&knob.value(found.as_str()), &knob.value(*value)) => Ok(()),
            Ok(_) => fs.write(knob, value),
            Err(e) => Err(e),
        };
        if let Err(source) = released
            && !absent(&source)
        {
            outcome = outcome.and(Err(ReleaseError { file: fs.location(knob), value, source }));
        }
    }
    outcome
}

/// The cgroup or the controller does not exist.
fn absent(error: &io::Error) -> bool {
    gone(error) || error.kind() == io::ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::OPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, CpuQuota, CpuSet, LimitsPatch, MemoryLimit, UnifiedKey};

    use super::*;
    use crate::tests::Throwaway;

    /// The limits of a container with requests, and those that its pod is lowered to.
    fn limits(version: Version, quota: i64, cpus: Option<&str>) -> LimitsPatch {
        let mut patch = LimitsPatch {
            cpu_quota: Some(CpuQuota::new(quota).unwrap()),
            cpuset_cpus: cpus.map(|cpus| CpuSet::new(cpus).unwrap()),
            memory: Some(MemoryLimit::Bytes(Bytes(64 << 20))),
            ..LimitsPatch::default()
        };
        if version == Version::V2 {
            patch.unified.insert(UnifiedKey::new("memory.min").unwrap(), "1048576".to_owned());
        }
        patch
    }

    #[test]
    #[ignore = "needs root"]
    fn a_released_cgroup_does_not_restrict_its_parent_and_keeps_its_memory_limit() {
        let pod = Throwaway::new();
        let version = pod.group.layout().version();
        let all = pod.group.read(&Knob::CPUSET_CPUS).unwrap_or_default();
        pod.group.apply(&limits(version, 50_000, None)).unwrap();
        let container = pod.group.child("container").unwrap();
        assert!(!container.create().unwrap().is_empty());
        container
            .apply(&limits(version, 50_000, Some(&all).filter(|all| !all.is_empty()).map(String::as_str)))
            .unwrap();
        let lower = limits(version, 20_000, Some("0"));
        if version == Version::V1 {
            pod.group.apply(&limits(version, 20_000, None)).unwrap_err();
        }
        container.release_parent().unwrap();
        pod.group.apply(&lower).unwrap();
        let observed = container.observe(&Default::default()).unwrap().observed;
        assert_eq!(observed.memory, Some(Bytes(64 << 20)));
        if version == Version::V2 {
            assert_eq!(container.read(&Knob::MEMORY_MIN).unwrap(), "0");
        }
        container.release_parent().unwrap();
        container.remove().unwrap();
        container.release_parent().unwrap();
    }
}
