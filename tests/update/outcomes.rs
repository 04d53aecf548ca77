//! The metric `crisp_resizes_total`: every outcome is counted with its reason.

use super::memory::holding;
use super::*;
use crate::support::env::TestEnv;
use crate::support::harness::scrape;

fn count(daemon: &Daemon, labels: &str) -> u64 {
    let page = scrape(&daemon.env.metrics());
    let sample = format!("crisp_resizes_total{{{labels}}} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&sample));
    line.unwrap_or_else(|| panic!("no {sample}:\n{page}")).parse().unwrap()
}

#[test]
fn applied_unchanged_and_rejected_resizes_are_counted_with_the_reason() {
    let daemon = Daemon::on(TestEnv::with_metrics(""));
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = holding(&daemon, &pod, "main", 24, 256);
    client.update(&id, limits(700, 256)).unwrap();
    client.update(&id, limits(700, 256)).unwrap();
    client.update(&id, limits(700, 12)).unwrap_err();
    let mut impossible = limits(700, 256);
    impossible.cpuset_cpus = "4000".into();
    client.update(&id, impossible).unwrap_err();
    assert_eq!(count(&daemon, "outcome=\"applied\",reason=\"none\""), 1);
    assert_eq!(count(&daemon, "outcome=\"unchanged\",reason=\"none\""), 1);
    let page = scrape(&daemon.env.metrics());
    // Only the CPU was lowered, from 1.
    let sample = "crisp_resize_duration_seconds_count{direction=\"down\",resource=\"cpu\"} 1";
    assert!(page.lines().any(|line| line == sample), "no {sample}:\n{page}");
    assert_eq!(page.matches("\ncrisp_resize_duration_seconds_count{").count(), 1, "{page}");
    assert_eq!(count(&daemon, "outcome=\"refused\",reason=\"below_usage\""), 1);
    let refused = count(&daemon, "outcome=\"refused\",reason=\"impossible\"");
    // Whether the kernel or crisp refuses it, nothing stays of it.
    assert_eq!(refused + count(&daemon, "outcome=\"rolled_back\",reason=\"write\""), 1);
}

#[test]
fn rolled_back_resizes_are_counted_with_the_reason() {
    for (point, reason) in [("resize.write.0", "write"), ("resize.applied", "record")] {
        let daemon = Daemon::with_failpoints(TestEnv::with_metrics(""), &format!("{point}=fail"));
        let client = daemon.client();
        let pod = daemon.run_pod("pod");
        let id = client.run_limited(&pod, "main", limits(500, 64));
        client.update(&id, limits(700, 128)).unwrap_err();
        assert_eq!(count(&daemon, &format!("outcome=\"rolled_back\",reason=\"{reason}\"")), 1);
        assert_eq!(count(&daemon, "outcome=\"applied\",reason=\"none\""), 0);
    }
}
