//! Reads with cgroups-rs what the engine wrote, so that a wrong value is found even if the engine reads it back.

use cgroups_rs::cpu::CpuController;
use cgroups_rs::cpuset::CpuSetController;
use cgroups_rs::hierarchies;
use cgroups_rs::memory::MemController;
use model::resources::{CpuSet, CpuShares, LimitsPatch};

use super::{CgroupFs as _, MIB, Version, apply, both, everything, memory, quota};
use crate::tests::Throwaway;

/// The limits of a cgroup as cgroups-rs reads them.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    quota: i64,
    period: u64,
    /// `cpu.shares` or `cpu.weight`.
    shares: u64,
    memory: i64,
    /// Memory and swap together on v1, swap alone on v2.
    swap: i64,
    cpus: Vec<(u64, u64)>,
}

fn read(throwaway: &Throwaway) -> Read {
    let path = throwaway.group.path().as_str().trim_start_matches('/');
    let group = cgroups_rs::Cgroup::load(hierarchies::auto(), path);
    let cpu: &CpuController = group.controller_of().unwrap();
    let memory: &MemController = group.controller_of().unwrap();
    let cpuset: &CpuSetController = group.controller_of().unwrap();
    Read {
        quota: cpu.cfs_quota().unwrap(),
        period: cpu.cfs_period().unwrap(),
        shares: cpu.shares().unwrap(),
        memory: memory.memory_stat().limit_in_bytes,
        swap: memory.memswap().limit_in_bytes,
        cpus: cpuset.cpuset().cpus,
    }
}

fn bytes(mib: u64) -> i64 {
    i64::try_from(mib * MIB).unwrap()
}

#[test]
#[ignore = "needs root"]
fn cgroups_rs_reads_the_limits_that_the_engine_wrote() {
    let throwaway = Throwaway::new();
    let version = throwaway.group.version();
    let expected = |quota, shares, weight, mib, swap| Read {
        quota,
        period: 100_000,
        shares: if version == Version::V1 { shares } else { weight },
        memory: bytes(mib),
        swap: if version == Version::V1 { bytes(mib + swap) } else { bytes(swap) },
        cpus: vec![(0, 0)],
    };
    apply(&throwaway.group, &everything()).unwrap();
    assert_eq!(read(&throwaway), expected(50_000, 512, 59, 64, 0));

    let up = LimitsPatch {
        cpu_quota: quota(150_000),
        cpu_shares: Some(CpuShares::new(1024).unwrap()),
        memory: memory(128),
        memory_swap: memory(192),
        ..LimitsPatch::default()
    };
    apply(&throwaway.group, &up).unwrap();
    assert_eq!(read(&throwaway), expected(150_000, 1024, 100, 128, 64));

    let down = LimitsPatch { cpu_quota: quota(20_000), cpuset_cpus: Some(CpuSet::new("0").unwrap()), ..both(32) };
    apply(&throwaway.group, &down).unwrap();
    assert_eq!(read(&throwaway), expected(20_000, 1024, 100, 32, 0));

    // cgroups-rs reads `max` as -1 or as the largest number, by the file.
    let lifted = LimitsPatch { cpu_quota: quota(-1), ..LimitsPatch::default() };
    apply(&throwaway.group, &lifted).unwrap();
    let quota = read(&throwaway).quota;
    assert!(quota == -1 || quota == i64::MAX, "{quota}");
}
