//! Effective limits, and the forecast of a refused shrink, as clients and metrics get them.

use tonic::Code;
use tonic_types::StatusExt as _;

use super::memory::holding;
use super::*;
use crate::support::env::TestEnv;
use crate::support::harness::{scrape, seconds, wait_for};

/// A pod of `mib` MiB in a cgroup that crisp manages.
fn sized_pod(daemon: &Daemon, name: &str, mib: i64) -> Pod {
    daemon.run_pod_with(name, |config| config.linux.get_or_insert_default().resources = Some(limits(800, mib)))
}

fn number(value: &serde_json::Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// The value of the sample with all of these labels.
fn sample(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let mut lines = page.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let line = lines.find(|line| labels.iter().all(|label| line.contains(label)))?;
    Some(line.rsplit_once(' ')?.1.parse().unwrap())
}

#[test]
fn verbose_status_and_metrics_name_the_level_whose_limit_is_effective() {
    let daemon = Daemon::on(TestEnv::with_metrics(""));
    let client = daemon.client();
    let pod = sized_pod(&daemon, "shop", 40);
    let id = client.run_limited(&pod, "web", limits(500, 500));
    let info = client.container_info(&id);
    let memory = &info["resources"]["effective"]["memory"];
    assert_eq!(number(&memory["limit"]), 40 << 20, "{memory:#}");
    let pod_cgroup = client.pod_info(&pod.id)["cgroup"]["path"].clone();
    assert_eq!((&memory["set_by"]["kind"], &memory["set_by"]["cgroup"]), (&"pod".into(), &pod_cgroup));
    assert!((20 << 20..40 << 20).contains(&number(&memory["free"])), "{memory:#}");
    let cpu = &info["resources"]["effective"]["cpu"];
    assert_eq!((number(&cpu["limit"]), &cpu["set_by"]["kind"]), (500_000_000, &"container".into()), "{cpu:#}");
    assert_eq!(client.in_force(&id).memory_limit_in_bytes, 500 * MIB, "the status has the container's own limit");
    let of_pod = client.pod_info(&pod.id);
    assert_eq!(number(&of_pod["resources"]["effective"]["memory"]["limit"]), 40 << 20, "{of_pod:#}");
    assert_eq!(number(&of_pod["resources"]["containers"][&id]["effective"]["memory"]["limit"]), 40 << 20);
    let page = scrape(&daemon.env.metrics());
    let limit = |labels: &[&str]| sample(&page, "crisp_container_effective_limit", labels);
    let own = "pod=\"shop\",container=\"web\"";
    assert_eq!(limit(&[own, "resource=\"memory\"", "bound_by=\"pod\""]), Some(f64::from(40 << 20)), "{page}");
    assert_eq!(limit(&[own, "resource=\"cpu\"", "unit=\"core\"", "bound_by=\"container\""]), Some(0.5), "{page}");
    assert!(sample(&page, "crisp_container_memory_available_bytes", &[own]).unwrap() < f64::from(40 << 20), "{page}");
    client.update_pod(&pod.id, limits(800, 600), v1::LinuxContainerResources::default()).unwrap();
    let memory = client.container_info(&id)["resources"]["effective"]["memory"].clone();
    assert_eq!((number(&memory["limit"]), &memory["set_by"]["kind"]), (500 << 20, &"container".into()), "{memory:#}");
}

#[test]
fn the_level_whose_memory_limit_was_hit_last_is_reported_with_a_time() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = sized_pod(&daemon, "shop", 24);
    let mut config = container("web", &["sh", "-c", "sleep 1; while true; do tail /dev/zero; sleep 1; done"]);
    let mut own = limits(500, 512);
    // With a limit of swap, Linux 6.18 does not count on v1.
    own.memory_swap_limit_in_bytes = -1;
    config.linux.as_mut().unwrap().resources = Some(own);
    let id = client.run_config(&pod, config);
    let last = || client.container_info(&id)["resources"]["effective"]["last_memory_hit"].clone();
    let hit = wait_for("a hit of the pod's limit", seconds(30), || Some(last()).filter(|last| !last["seen"].is_null()));
    assert_eq!(hit["at"]["kind"], "pod", "{hit:#}");
    assert!(number(&hit["hits"]) > 0 && number(&hit["seen"]) > 1_600_000_000_000_000_000, "{hit:#}");
}

#[test]
fn a_refused_shrink_has_the_limit_that_fits_as_a_detail_and_in_metrics() {
    let daemon = Daemon::on(TestEnv::with_metrics(""));
    let client = daemon.client();
    let pod = daemon.run_pod("shop");
    let id = holding(&daemon, &pod, "web", 24, 256);
    let refusal = client.update(&id, limits(700, 12)).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    assert!(!refusal.details().is_empty() && refusal.details().len() < 2048);
    let info = refusal.get_details_error_info().unwrap();
    assert_eq!((info.domain.as_str(), info.reason.as_str()), ("crisp", "MEMORY_BELOW_USAGE"));
    let value = |key: &str| info.metadata[key].parse::<i64>().unwrap();
    assert_eq!(value("limitBytes"), 12 * MIB);
    assert!(value("usageBytes") > 24 * MIB && value("anonymousBytes") >= 24 * MIB, "{info:?}");
    let smallest = value("smallestLimitBytes");
    assert!((24 * MIB..128 * MIB).contains(&smallest), "{info:?}");
    for key in ["reclaimableBytes", "unevictableBytes", "kernelBytes", "fileBytes"] {
        assert!(value(key) >= 0);
    }
    let own = "namespace=\"tests\",pod=\"shop\",container=\"web\"";
    let forecast = || sample(&scrape(&daemon.env.metrics()), "crisp_refused_shrink_forecast_bytes", &[own]);
    assert_eq!(forecast(), Some(smallest as f64));
    let mut fits = limits(700, 0);
    fits.memory_limit_in_bytes = smallest + MIB;
    client.update(&id, fits).unwrap();
    assert_eq!(forecast(), None, "a later change was applied");
    assert_eq!(oom_kills(&daemon, &id), "0");
    let invalid = client.update(&id, limits(-5, 12)).unwrap_err();
    assert!(invalid.details().is_empty(), "{invalid:?}");
}
