//! Metrics of effective limits, and of shrinks that were refused.

use std::collections::BTreeMap;

use cgroup::{EffectiveLimit, EffectiveLimits, LevelKind, ShrinkForecast};

use super::text::{Exposition, Kind};
use crate::runtime::ContainerNames;

pub(super) fn write(
    text: &mut Exposition,
    limits: &BTreeMap<ContainerNames, EffectiveLimits>,
    shrinks: &BTreeMap<ContainerNames, ShrinkForecast>,
) {
    let lowest = "Lowest limit of a container and all cgroups above it, and the level that sets it.";
    let mut family = text.family("crisp_container_effective_limit", Kind::Gauge, lowest);
    for (names, limits) in limits {
        for Sample { resource, unit, bound_by, value } in samples(limits) {
            let mut labels = labels(names).to_vec();
            labels.extend([("resource", resource), ("unit", unit), ("bound_by", bound_by.word())]);
            family.sample(&labels, value);
        }
    }
    let left = "Memory left to a container below the limits of all levels, without its reclaimable page cache.";
    let mut family = text.family("crisp_container_memory_available_bytes", Kind::Gauge, left);
    for (names, limits) in limits {
        if let Some(available) = limits.memory.as_ref().and_then(EffectiveLimit::available) {
            family.sample(&labels(names), available);
        }
    }
    let refused = "Smallest memory limit that would have been accepted when a lower one was refused, until a resize.";
    let mut family = text.family("crisp_refused_shrink_forecast_bytes", Kind::Gauge, refused);
    for (names, forecast) in shrinks {
        family.sample(&labels(names), forecast.smallest_limit);
    }
}

fn labels(ContainerNames { namespace, pod, container }: &ContainerNames) -> [(&str, &str); 3] {
    [("namespace", namespace), ("pod", pod), ("container", container)]
}

struct Sample {
    resource: &'static str,
    /// As in kube_pod_container_resource_limits of kube-state-metrics.
    unit: &'static str,
    bound_by: LevelKind,
    value: f64,
}

fn samples(limits: &EffectiveLimits) -> Vec<Sample> {
    let EffectiveLimits { cpu, memory, pids, cpuset, memory_hits: _, last_memory_hit: _ } = limits;
    let amounts = [("cpu", "core", cpu, 1e-9), ("memory", "byte", memory, 1.0), ("pids", "integer", pids, 1.0)];
    let amounts = amounts.into_iter().filter_map(|(resource, unit, limit, factor)| {
        let EffectiveLimit { limit, set_by, .. } = limit.as_ref()?;
        Some(Sample { resource, unit, bound_by: set_by.kind, value: number(*limit) * factor })
    });
    let cpus = cpuset.as_ref().and_then(|set| {
        let count = model::resources::CpuSet::new(&set.cpus).ok()?.members().count();
        let value = number(u64::try_from(count).ok()?);
        Some(Sample { resource: "cpuset", unit: "integer", bound_by: set.set_by.kind, value })
    });
    amounts.chain(cpus).collect()
}

/// As Prometheus has it: exact up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "samples are 64-bit floats")]
fn number(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use cgroup::{EffectiveCpus, LeastFree, Level};

    use super::*;

    fn limit(limit: u64, kind: LevelKind, free: Option<u64>) -> Option<EffectiveLimit> {
        let set_by = Level { kind, cgroup: "/x".to_owned() };
        Some(EffectiveLimit { limit, set_by, free, least_free: None })
    }

    #[test]
    fn each_limit_is_a_sample_with_the_level_that_sets_it() {
        let names = ContainerNames { namespace: "prod".into(), pod: "shop".into(), container: "web".into() };
        let mut memory = limit(64 << 20, LevelKind::Pod, Some(9)).unwrap();
        let root = Level { kind: LevelKind::Root, cgroup: "/".to_owned() };
        memory.least_free = Some(LeastFree { free: 5, at: root.clone() });
        let limits = EffectiveLimits {
            cpu: limit(1_500_000_000, LevelKind::Container, None),
            memory: Some(memory),
            pids: limit(100, LevelKind::Parent, Some(60)),
            cpuset: Some(EffectiveCpus { cpus: "0-1,4".into(), set_by: root }),
            ..EffectiveLimits::default()
        };
        let forecast = ShrinkForecast { smallest_limit: 4096, ..ShrinkForecast::default() };
        let mut text = Exposition::default();
        write(&mut text, &[(names.clone(), limits)].into(), &[(names, forecast)].into());
        let text = String::from(text);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let of = "namespace=\"prod\",pod=\"shop\",container=\"web\"";
        let limit = |rest: &str| format!("crisp_container_effective_limit{{{of},{rest}");
        assert_eq!(
            samples,
            [
                limit("resource=\"cpu\",unit=\"core\",bound_by=\"container\"} 1.5"),
                limit("resource=\"memory\",unit=\"byte\",bound_by=\"pod\"} 67108864"),
                limit("resource=\"pids\",unit=\"integer\",bound_by=\"parent\"} 100"),
                limit("resource=\"cpuset\",unit=\"integer\",bound_by=\"root\"} 3"),
                format!("crisp_container_memory_available_bytes{{{of}}} 5"),
                format!("crisp_refused_shrink_forecast_bytes{{{of}}} 4096"),
            ]
        );
    }
}
