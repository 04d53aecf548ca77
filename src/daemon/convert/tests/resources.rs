use super::super::tests::support;
use super::*;

fn convert(change: impl FnOnce(&mut v1::LinuxContainerResources)) -> Result<LimitsPatch, InvalidField> {
    let mut asked = support::limits();
    change(&mut asked);
    limits(FieldPath::top("linux.resources"), Some(asked))
}

/// Returns what the kernel shows for `support::limits`, on cgroup v1 with 4096-byte pages.
fn observed() -> ObservedLimits {
    ObservedLimits {
        cpu_quota: Some(Micros(50_000)),
        cpu_period: Some(Micros(100_000)),
        cpu_shares: Some(CpuShares::new(512).unwrap()),
        cpu_weight: None,
        memory: Some(Bytes(in_pages(100_000_001))),
        memory_swap: Some(Bytes(in_pages(200_000_000))),
        cpuset_cpus: Some(CpuSet::new("0,1").unwrap()),
        cpuset_mems: Some(CpuSet::new("0").unwrap()),
        hugepages: [(HugePageSize::new("2MB").unwrap(), Bytes(0))].into(),
        oom_score_adj: Some(OomScoreAdj::new(-997).unwrap()),
    }
}

fn shown(asked: &LimitsPatch, now: &ObservedLimits) -> v1::LinuxContainerResources {
    limits_to_wire(asked, &CurrentLimits { observed: now.clone(), drift: vec![] }).unwrap().linux.unwrap()
}

#[test]
fn every_field_is_converted() {
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
fn zero_and_empty_request_nothing() {
    let at = FieldPath::top("r");
    assert_eq!(limits(at, None).unwrap(), LimitsPatch::default());
    let empty = limits(at, Some(v1::LinuxContainerResources::default())).unwrap();
    assert_eq!(empty, LimitsPatch { oom_score_adj: Some(OomScoreAdj::new(0).unwrap()), ..LimitsPatch::default() });
    assert_eq!(convert(|r| r.cpu_quota = -1).unwrap().cpu_quota, Some(CpuQuota::Unlimited));
}

#[test]
fn invalid_limits_are_refused_by_field() {
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
        ("unified[\"../x\"]", convert(|r| r.unified = support::map(&[("../x", "1")]))),
        ("unified", convert(|r| r.unified = support::map(&[("memory.high", "1\0")]))),
    ];
    for (field, refusal) in cases {
        let said = refusal.unwrap_err().to_string();
        assert!(said.starts_with(&format!("linux.resources.{field}: ")), "{said}");
    }
}

#[test]
fn a_status_returns_requested_values_while_the_kernel_agrees() {
    let asked = convert(|_| ()).unwrap();
    assert_eq!(shown(&asked, &observed()), support::limits());
}

#[test]
fn a_status_gives_the_kernels_values_where_they_differ() {
    let asked = convert(|_| ()).unwrap();
    let now = ObservedLimits {
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
    let now = ObservedLimits { cpu_quota: None, memory: None, memory_swap: None, ..observed() };
    let linux = shown(&LimitsPatch::default(), &now);
    assert_eq!((linux.cpu_quota, linux.memory_limit_in_bytes, linux.memory_swap_limit_in_bytes), (0, 0, 0));
    for asked in [-1, 50_000] {
        let asked = convert(|r| r.cpu_quota = asked).unwrap();
        assert_eq!(shown(&asked, &now).cpu_quota, -1);
    }
}

#[test]
fn shares_survive_the_conversion_to_a_weight() {
    for asked_shares in [2, 256, 512, 1024, 262_144] {
        let shares = CpuShares::new(asked_shares).unwrap();
        let asked = convert(|r| r.cpu_shares = asked_shares).unwrap();
        let weight = CpuWeight::new(cgroup::weight(shares).into()).unwrap();
        let now = ObservedLimits { cpu_shares: None, cpu_weight: Some(weight), ..observed() };
        assert_eq!(shown(&asked, &now).cpu_shares, asked_shares);
        let found = shown(&LimitsPatch::default(), &now).cpu_shares;
        assert_eq!(cgroup::weight(CpuShares::new(found).unwrap()), weight.get());
        assert!(found <= asked_shares);
    }
}

#[test]
fn without_a_cpu_controller_a_status_has_no_limits() {
    let asked = convert(|_| ()).unwrap();
    let gaps = [ObservedLimits { cpu_period: None, ..observed() }, ObservedLimits { cpu_shares: None, ..observed() }];
    for observed in gaps {
        assert_eq!(limits_to_wire(&asked, &CurrentLimits { observed, drift: vec![] }), None);
    }
}

#[test]
fn a_score_and_raw_files_are_shown_as_the_kernel_has_them() {
    let asked = convert(|_| ()).unwrap();
    let restricted = ObservedLimits { oom_score_adj: Some(OomScoreAdj::new(0).unwrap()), ..observed() };
    assert_eq!(shown(&asked, &restricted).oom_score_adj, 0);
    assert_eq!(shown(&asked, &observed()).unified["memory.high"], "max");
    let drift = cgroup::Drift {
        knob: cgroup::Knob::MEMORY_HIGH,
        wrote: "max".to_owned(),
        read: "max".to_owned(),
        found: Some("4096".to_owned()),
    };
    let now = CurrentLimits { observed: observed(), drift: vec![drift] };
    assert_eq!(limits_to_wire(&asked, &now).unwrap().linux.unwrap().unified["memory.high"], "4096");
}

fn kubernetes(cpu: &str) -> v1::KubernetesResources {
    v1::KubernetesResources {
        limits: [("cpu".to_owned(), cri_api::Quantity { string: cpu.to_owned() })].into(),
        ..Default::default()
    }
}

fn update_request() -> v1::UpdateContainerResourcesRequest {
    v1::UpdateContainerResourcesRequest {
        container_id: "abc".to_owned(),
        linux: Some(support::limits()),
        annotations: [("a".to_owned(), "b".to_owned())].into(),
        kubernetes_resources: Some(kubernetes("2")),
        windows: None,
    }
}

#[test]
fn an_update_has_every_field_except_those_of_repeated_requests() {
    let (container, patch, warnings) = update(update_request()).unwrap();
    let all = convert(|_| ()).unwrap();
    assert_eq!((container.as_str(), warnings.len()), ("abc", 1));
    assert_eq!(patch.limits, LimitsPatch { hugepages: Default::default(), ..all });
    assert_eq!(patch.kubernetes_resources.unwrap().limits.len(), 1);
    let alone = v1::LinuxContainerResources { cpuset_cpus: "0-1".to_owned(), ..Default::default() };
    let (_, patch, _) = update(v1::UpdateContainerResourcesRequest { linux: Some(alone), ..update_request() }).unwrap();
    let cpuset_cpus = Some(CpuSet::new("0-1").unwrap());
    assert_eq!(patch.limits, LimitsPatch { cpuset_cpus, ..LimitsPatch::default() }, "a cpuset and nothing else");
    let bad = v1::UpdateContainerResourcesRequest { kubernetes_resources: Some(kubernetes("-2")), ..update_request() };
    let Err(InvalidField::Invalid { field, .. }) = update(bad) else { panic!("not refused") };
    assert_eq!(field, "kubernetes_resources.limits[\"cpu\"]");
}

#[test]
fn a_change_for_windows_is_refused() {
    let windows = Some(v1::WindowsContainerResources::default());
    let refusal = update(v1::UpdateContainerResourcesRequest { windows, ..update_request() }).unwrap_err();
    assert!(matches!(refusal, InvalidField::Invalid { field, .. } if field == "windows"));
}

#[test]
fn values_after_the_kubelet_subtracted_overhead_are_accepted() {
    let at = FieldPath::top("resources");
    let view = |cpu_quota, memory_limit_in_bytes| {
        Some(v1::LinuxContainerResources { cpu_quota, memory_limit_in_bytes, ..Default::default() })
    };
    let none = pod_limits(at, view(-25_001, -1 - (32 << 20))).unwrap();
    assert_eq!((none.cpu_quota, none.memory), (Some(CpuQuota::Unlimited), Some(MemoryLimit::Unlimited)));
    let little = pod_limits(at, view(500, 0)).unwrap();
    assert_eq!((little.cpu_quota, little.memory), (Some(CpuQuota::Micros(Micros(1000))), None));
}

#[test]
fn the_kubelets_values_for_unlimited_pods_are_accepted() {
    for memory in [-1, 9_223_372_036_854_771_712] {
        let view = v1::LinuxContainerResources {
            cpu_quota: -1,
            cpu_shares: 2,
            memory_limit_in_bytes: memory,
            ..Default::default()
        };
        let request = v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: "abc".to_owned(),
            resources: Some(view),
            overhead: Some(v1::LinuxContainerResources::default()),
            pod_resources: Some(v1::PodResourceConfig {
                kubernetes_resources: Some(kubernetes("3")),
                ..Default::default()
            }),
        };
        let (pod, update, _) = update_pod(request).unwrap();
        assert_eq!(update.pod_resources.unwrap().resources.unwrap().limits.len(), 1);
        let resources = update.resources.unwrap();
        assert_eq!((pod.as_str(), resources.memory), ("abc", Some(MemoryLimit::Unlimited)));
        assert_eq!((resources.cpu_quota, resources.oom_score_adj), (Some(CpuQuota::Unlimited), None));
        assert_eq!(update.overhead, Some(LimitsPatch::default()));
    }
}
