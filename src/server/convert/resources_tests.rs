use super::super::fixture;
use super::*;

fn convert(change: impl FnOnce(&mut v1::LinuxContainerResources)) -> Result<LimitsPatch, Refusal> {
    let mut asked = fixture::limits();
    change(&mut asked);
    limits(Field::top("linux.resources"), Some(asked))
}

/// What the kernel of `fixture::limits` shows, on cgroup v1 with pages of 4096 bytes.
fn observed() -> Observed {
    Observed {
        cpu_quota: Some(Micros(50_000)),
        cpu_period: Some(Micros(100_000)),
        cpu_shares: Some(CpuShares::new(512).unwrap()),
        cpu_weight: None,
        memory: Some(Bytes(in_pages(100_000_001))),
        memory_swap: Some(Bytes(in_pages(200_000_000))),
        cpuset_cpus: Some(CpuSet::new("0,1").unwrap()),
        cpuset_mems: Some(CpuSet::new("0").unwrap()),
        hugepages: [(HugePageSize::new("2MB").unwrap(), Bytes(0))].into(),
        pids: Some(5),
    }
}

fn shown(asked: &LimitsPatch, now: &Observed) -> v1::LinuxContainerResources {
    in_force(asked, now).unwrap().linux.unwrap()
}

#[test]
fn every_field_comes_through() {
    let patch = convert(|_| ()).unwrap();
    assert_eq!(
        patch,
        LimitsPatch {
            cpu_quota: Some(CpuQuota::Micros(Micros(50_000))),
            cpu_period: Some(CpuPeriod::new(100_000).unwrap()),
            cpu_shares: Some(CpuShares::new(512).unwrap()),
            memory: Some(MemoryLimit::Bytes(Bytes(100_000_001))),
            memory_swap: Some(MemoryLimit::Bytes(Bytes(200_000_000))),
            cpuset_cpus: Some(CpuSet::new("0-1").unwrap()),
            cpuset_mems: Some(CpuSet::new("0").unwrap()),
            hugepages: [(HugePageSize::new("2MB").unwrap(), Bytes(0))].into(),
            unified: [(UnifiedKey::new("memory.high").unwrap(), "max".to_owned())].into(),
            oom_score_adj: Some(OomScoreAdj::new(-997).unwrap()),
        }
    );
}

#[test]
fn zero_and_empty_ask_for_nothing() {
    let at = Field::top("r");
    assert_eq!(limits(at, None).unwrap(), LimitsPatch::default());
    let empty = limits(at, Some(v1::LinuxContainerResources::default())).unwrap();
    assert_eq!(empty, LimitsPatch { oom_score_adj: Some(OomScoreAdj::new(0).unwrap()), ..LimitsPatch::default() });
    assert_eq!(convert(|r| r.cpu_quota = -1).unwrap().cpu_quota, Some(CpuQuota::Unlimited));
}

#[test]
fn limits_that_cannot_be_are_refused_by_field() {
    let cases = [
        ("cpu_period", convert(|r| r.cpu_period = 999)),
        ("cpu_quota", convert(|r| r.cpu_quota = -2)),
        ("cpu_shares", convert(|r| r.cpu_shares = 1)),
        ("memory_limit_in_bytes", convert(|r| r.memory_limit_in_bytes = -5)),
        ("memory_swap_limit_in_bytes", convert(|r| r.memory_swap_limit_in_bytes = -5)),
        ("oom_score_adj", convert(|r| r.oom_score_adj = 1001)),
        ("cpuset_cpus", convert(|r| r.cpuset_cpus = "x".into())),
        ("cpuset_mems", convert(|r| r.cpuset_mems = "1-0".into())),
        ("hugepage_limits[0]", convert(|r| r.hugepage_limits[0].page_size = "2M".into())),
        ("unified[\"../x\"]", convert(|r| r.unified = fixture::map(&[("../x", "1")]))),
        ("unified", convert(|r| r.unified = fixture::map(&[("memory.high", "1\0")]))),
    ];
    for (field, refusal) in cases {
        let said = refusal.unwrap_err().to_string();
        assert!(said.starts_with(&format!("linux.resources.{field}: ")), "{said}");
    }
}

#[test]
fn a_status_gives_back_what_was_asked_while_the_kernel_agrees() {
    let asked = convert(|_| ()).unwrap();
    assert_eq!(shown(&asked, &observed()), fixture::limits());
}

#[test]
fn a_status_gives_the_kernels_values_where_they_differ() {
    let asked = convert(|_| ()).unwrap();
    let now = Observed {
        cpu_quota: Some(Micros(70_000)),
        cpu_shares: Some(CpuShares::new(300).unwrap()),
        memory: Some(Bytes(8192)),
        memory_swap: None,
        cpuset_cpus: Some(CpuSet::new("1").unwrap()),
        ..observed()
    };
    let linux = shown(&asked, &now);
    assert_eq!((linux.cpu_quota, linux.cpu_shares, linux.memory_limit_in_bytes), (70_000, 300, 8192));
    assert_eq!((linux.memory_swap_limit_in_bytes, linux.cpuset_cpus.as_str()), (0, "1"));
}

#[test]
fn unlimited_is_zero_memory_and_no_quota() {
    let now = Observed { cpu_quota: None, memory: None, memory_swap: None, ..observed() };
    let linux = shown(&LimitsPatch::default(), &now);
    assert_eq!((linux.cpu_quota, linux.memory_limit_in_bytes, linux.memory_swap_limit_in_bytes), (0, 0, 0));
    for asked in [-1, 50_000] {
        let asked = convert(|r| r.cpu_quota = asked).unwrap();
        assert_eq!(shown(&asked, &now).cpu_quota, -1);
    }
}

#[test]
fn shares_survive_the_way_through_a_weight() {
    for asked_shares in [2, 256, 512, 1024, 262_144] {
        let shares = CpuShares::new(asked_shares).unwrap();
        let asked = convert(|r| r.cpu_shares = asked_shares).unwrap();
        let weight = CpuWeight::new(cgroup::weight(shares).into()).unwrap();
        let now = Observed { cpu_shares: None, cpu_weight: Some(weight), ..observed() };
        assert_eq!(shown(&asked, &now).cpu_shares, asked_shares);
        let found = shown(&LimitsPatch::default(), &now).cpu_shares;
        assert_eq!(cgroup::weight(CpuShares::new(found).unwrap()), weight.get());
        assert!(found <= asked_shares);
    }
}

#[test]
fn without_a_cpu_controller_nothing_is_said() {
    let asked = convert(|_| ()).unwrap();
    assert_eq!(in_force(&asked, &Observed { cpu_period: None, ..observed() }), None);
    assert_eq!(in_force(&asked, &Observed { cpu_shares: None, ..observed() }), None);
}
