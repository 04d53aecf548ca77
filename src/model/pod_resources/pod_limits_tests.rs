use proptest::prelude::*;

use super::super::Source;
use super::*;

fn amounts(list: &[(&str, &str)]) -> ResourceList {
    list.iter().map(|(name, amount)| (name.parse().unwrap(), amount.parse().unwrap())).collect()
}

fn resources(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> Resources {
    Resources { requests: amounts(requests), limits: amounts(limits) }
}

fn container(kind: ContainerKind, resources: Option<Resources>) -> ContainerResourceConfig {
    ContainerResourceConfig {
        name: "c".to_owned(),
        kind,
        resources,
        mounts: Vec::new(),
        devices: Vec::new(),
        cdi_devices: Vec::new(),
    }
}

fn regular(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> ContainerResourceConfig {
    container(ContainerKind::Regular, Some(resources(requests, limits)))
}

fn init(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> ContainerResourceConfig {
    container(ContainerKind::Init, Some(resources(requests, limits)))
}

fn pod(containers: Vec<ContainerResourceConfig>, resources: Option<Resources>) -> LimitsPatch {
    pod_limits(&PodResourceConfig { containers, resources, source: Source::Request })
}

/// Returns shares, quota and memory; -1 is unlimited, and 0 means not set.
fn numbers(patch: &LimitsPatch) -> (i64, i64, i64) {
    let LimitsPatch { cpu_quota, cpu_period, cpu_shares, memory, .. } = patch.clone();
    assert_eq!(cpu_period.map(i64::from), cpu_quota.map(|_| 100_000));
    let rest = LimitsPatch { cpu_quota, cpu_period, cpu_shares, memory, ..LimitsPatch::default() };
    assert_eq!(*patch, rest, "only these four are set");
    let quota = match cpu_quota {
        Some(CpuQuota::Micros(Micros(micros))) => i64::try_from(micros).unwrap(),
        Some(CpuQuota::Unlimited) => -1,
        None => 0,
    };
    let memory = match memory {
        Some(MemoryLimit::Bytes(Bytes(bytes))) => i64::try_from(bytes).unwrap(),
        Some(MemoryLimit::Unlimited) => -1,
        None => 0,
    };
    (cpu_shares.map_or(0, i64::from), quota, memory)
}

#[test]
fn an_empty_declaration_sets_no_limits() {
    assert_eq!(pod(vec![], None), LimitsPatch::default());
}

#[test]
fn a_pod_is_the_sum_of_its_containers() {
    let one = regular(&[("cpu", "250m"), ("memory", "64Mi")], &[("cpu", "500m"), ("memory", "128Mi")]);
    let two = regular(&[("cpu", "1")], &[("cpu", "1.5"), ("memory", "1Gi")]);
    assert_eq!(numbers(&pod(vec![one, two], None)), (1280, 200_000, (128 + 1024) << 20));
}

#[test]
fn an_init_container_counts_if_it_needs_more_than_the_rest_together() {
    let small = || regular(&[("cpu", "100m")], &[("cpu", "200m"), ("memory", "10Mi")]);
    let first = || init(&[("cpu", "150m")], &[("cpu", "1"), ("memory", "15Mi")]);
    let second = || init(&[("cpu", "500m")], &[("cpu", "500m"), ("memory", "5Mi")]);
    let all = vec![first(), second(), small(), small()];
    assert_eq!(numbers(&pod(all, None)), (512, 100_000, 20 << 20));
    assert_eq!(numbers(&pod(vec![first()], None)), (153, 100_000, 15 << 20));
}

#[test]
fn one_container_without_a_limit_leaves_the_pod_without_it() {
    let limited = || regular(&[], &[("cpu", "1"), ("memory", "64Mi")]);
    for open in [regular(&[("cpu", "1")], &[("cpu", "1")]), init(&[], &[("cpu", "1"), ("memory", "0")])] {
        let quota = if open.kind == ContainerKind::Init { 100_000 } else { 200_000 };
        let shares = quota * 1024 / 100_000;
        assert_eq!(numbers(&pod(vec![limited(), open], None)), (shares, quota, 0));
    }
    let silent = container(ContainerKind::Regular, None);
    assert_eq!(numbers(&pod(vec![limited(), silent.clone()], None)), (1024, 0, 0));
    assert_eq!(numbers(&pod(vec![silent], None)), (2, 0, 0));
}

#[test]
fn pod_level_resources_override_those_of_containers() {
    let open = || vec![regular(&[("cpu", "250m")], &[]), container(ContainerKind::Regular, None)];
    let whole = resources(&[("cpu", "2")], &[("cpu", "3"), ("memory", "1Gi")]);
    assert_eq!(numbers(&pod(open(), Some(whole))), (2048, 300_000, 1 << 30));
    // One resource is set for the pod, the other is the sum.
    let limited = vec![regular(&[("cpu", "250m")], &[("cpu", "500m"), ("memory", "64Mi")])];
    assert_eq!(numbers(&pod(limited, Some(resources(&[], &[("memory", "1Gi")])))), (256, 50_000, 1 << 30));
    // The pod's limit is its request only if no container has a request.
    let limits = || Some(resources(&[], &[("cpu", "3")]));
    assert_eq!(numbers(&pod(open(), limits())), (256, 300_000, 0));
    assert_eq!(numbers(&pod(vec![container(ContainerKind::Regular, None)], limits())), (3072, 300_000, 0));
    assert_eq!(numbers(&pod(vec![], limits())), (3072, 300_000, 0));
}

#[test]
fn a_limit_alone_is_also_the_request() {
    assert_eq!(numbers(&pod(vec![regular(&[], &[("cpu", "2")])], None)), (2048, 200_000, 0));
}

#[test]
fn values_are_clamped_to_kernel_ranges_and_rounded_up() {
    let cases = [
        ("1m", "1m", (2, 1000)),
        ("1u", "1u", (2, 1000)),
        ("0", "0", (2, 0)),
        ("15m", "15m", (15, 1500)),
        ("1.0001", "1.0001", (1025, 100_100)),
        ("256", "256", (262_144, 25_600_000)),
        ("1k", "1k", (262_144, 100_000_000)),
        ("100M", "100M", (262_144, 10_000_000_000_000)),
        ("1G", "1G", (262_144, -1)),
        ("9223372036854775807", "9223372036854775807", (262_144, -1)),
    ];
    for (request, limit, expected) in cases {
        let (shares, quota, _) = numbers(&pod(vec![regular(&[("cpu", request)], &[("cpu", limit)])], None));
        assert_eq!((shares, quota), expected, "{request}");
    }
    let memory = |text| numbers(&pod(vec![regular(&[], &[("memory", text)]); 2], None)).2;
    assert_eq!((memory("128"), memory("100m"), memory("500m"), memory("0.1Ki")), (256, 1, 1, 205));
    assert_eq!(memory("9223372036854775807"), -1);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The kubelet's algorithm, in whole milli-CPUs and bytes.
    #[test]
    fn pod_limits_equal_those_of_the_kubelet(
        regulars in proptest::collection::vec((0..5000_u64, 1..5000_u64, 1..1_000_000_u64), 1..5),
        inits in proptest::collection::vec((0..5000_u64, 1..5000_u64, 1..1_000_000_u64), 0..5),
    ) {
        let make = |kind, list: &[(u64, u64, u64)]| -> Vec<ContainerResourceConfig> {
            let one = |(request, limit, memory): &(u64, u64, u64)| {
                let limits = resources(
                    &[("cpu", &format!("{request}m"))],
                    &[("cpu", &format!("{limit}m")), ("memory", &memory.to_string())],
                );
                container(kind, Some(limits))
            };
            list.iter().map(one).collect()
        };
        let all = [make(ContainerKind::Init, &inits), make(ContainerKind::Regular, &regulars)].concat();
        let effective = |amount: fn(&(u64, u64, u64)) -> u64| {
            regulars.iter().map(amount).sum::<u64>().max(inits.iter().map(amount).max().unwrap_or(0))
        };
        let (request, limit, memory) = (effective(|c| c.0), effective(|c| c.1), effective(|c| c.2));
        let expected = ((request * 1024 / 1000).clamp(2, 262_144), (limit * 100).max(1000), memory);
        let (shares, quota, bytes) = numbers(&pod(all, None));
        prop_assert_eq!((shares.unsigned_abs(), quota.unsigned_abs(), bytes.unsigned_abs()), expected);
    }
}
