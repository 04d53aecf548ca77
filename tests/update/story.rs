//! `crisp history`, the metrics, the log, the spans and the kernel have the same events with the same numbers.
//! A new report of resizes, OOM kills or drift adds its check to [`agree`].

use serde_json::{Value, json};

use super::history::history;
use super::*;
use crate::support::env::TestEnv;
use crate::support::harness::{scrape, seconds, wait_for};
use crate::support::otlp_collector::{Collector, Manner, attribute};

/// A resize as every report must have it.
struct Event {
    memory: (&'static str, &'static str),
    outcome: &'static str,
    reason: Option<&'static str>,
}

/// Checks the history, the log and the metrics against `events`. `metrics` is the page before the daemon was killed.
fn agree(daemon: &Daemon, id: &str, events: &[Event], metrics: &str) {
    let kept = history(daemon, id);
    assert_eq!(kept.len(), events.len(), "{kept:#?}");
    let log = daemon.env.read_log();
    for (entry, event) in kept.iter().zip(events) {
        let (old, new) = event.memory;
        let change = json!({ "resource": "memory", "old": old, "new": new });
        assert!(entry["resources"].as_array().unwrap().contains(&change), "{entry:#}");
        assert_eq!((&entry["outcome"], &entry["reason"]), (&json!(event.outcome), &json!(event.reason)));
        // The line in the log has the same duration, caller and values.
        let duration = format!(" duration_us={}", entry["duration_us"]);
        let caller = format!("{}[{}]", entry["caller"]["program"].as_str().unwrap(), entry["caller"]["pid"]);
        let is_line = |line: &&str| line.contains(&format!("memory=\"{old}→{new}\"")) && line.contains(&duration);
        let line = log.lines().find(is_line).unwrap_or_else(|| panic!("{entry:#} in {log}"));
        assert!(line.contains(&caller), "{line}");
        if let Some(reason) = event.reason {
            assert!(line.contains(&format!("reason=\"{reason}\"")), "{line}");
        }
    }
    let mut counts = std::collections::BTreeMap::new();
    for event in events.iter().filter(|event| event.reason != Some("recovery")) {
        *counts.entry((event.outcome, event.reason)).or_insert(0) += 1;
    }
    for ((outcome, reason), count) in counts {
        let reason = reason.map(|reason| format!("reason=\"{reason}\"")).unwrap_or_default();
        let sample = |line: &&str| {
            line.starts_with("crisp_resizes_total{")
                && line.contains(&format!("outcome=\"{outcome}\""))
                && line.contains(&reason)
        };
        let total: u64 =
            metrics.lines().filter(sample).filter_map(|line| line.split(' ').nth(1)?.parse::<u64>().ok()).sum();
        assert_eq!(total, count, "{outcome} {reason} in {metrics}");
    }
}

/// Checks the spans of resizes against `events`. A resize that the next daemon finishes has no request and no span.
fn spans_agree(collector: &Collector, events: &[Event]) {
    for Event { memory: (old, new), outcome, reason } in events.iter().filter(|event| event.reason != Some("recovery"))
    {
        let changes = format!("memory={old}→{new}");
        let span = wait_for(&format!("a span with {changes}"), seconds(30), || {
            collector.spans().into_iter().find(|span| {
                let is_this = |value: String| value.split(' ').any(|change| change == changes);
                span.name == "resize" && attribute(&span.attributes, "changes").is_some_and(is_this)
            })
        });
        assert_eq!(attribute(&span.attributes, "outcome").as_deref(), Some(*outcome));
        assert_eq!(attribute(&span.attributes, "reason").as_deref(), *reason);
        let all = collector.spans();
        let has = |name: &str| all.iter().any(|step| step.name == name && step.parent_span_id == span.span_id);
        // A shrink may be refused before it is written, or by the kernel.
        let written = *outcome == "applied" || has("resize.write");
        for (step, expected) in
            [("plan", true), ("journal", written), ("write", written), ("record", *outcome == "applied")]
        {
            assert_eq!(has(&format!("resize.{step}")), expected, "{step} of {changes}");
        }
    }
}

#[test]
fn history_metrics_log_and_spans_report_the_same_events_with_the_same_numbers() {
    let collector = Collector::new(Manner::Takes);
    let mut daemon = Daemon::with_failpoints(TestEnv::with_metrics(&collector.settings()), "");
    let pod = daemon.run_pod("pod");
    let client = daemon.client();
    // Holds 24 MiB, and takes 200 MiB more when it may.
    let script = format!(
        "x=$(head -c {} /dev/zero | tr '\\0' a); echo holding; while [ ! -e /go ]; do sleep 0.1; done; \
         y=$(head -c {} /dev/zero | tr '\\0' b); echo $x$y",
        24 * MIB,
        200 * MIB
    );
    let mut config = container("web", &["sh", "-c", &script]);
    config.linux.as_mut().unwrap().resources = Some(limits(500, 128));
    let id = client.run_config(&pod, config);
    client.wait_printed(&id, "holding");

    client.update(&id, limits(700, 192)).unwrap();
    client.update(&id, limits(700, 12)).unwrap_err();
    let mut events = vec![
        Event { memory: ("128Mi", "192Mi"), outcome: "applied", reason: None },
        Event { memory: ("192Mi", "12Mi"), outcome: "refused", reason: Some("below_usage") },
    ];
    let (name, foreign) =
        if kernel_state::is_v2() { ("cpu.max", "20000 100000") } else { ("cpu.cfs_quota_us", "20000") };
    fs::write(file(&daemon, &id, name), foreign).unwrap();
    client.in_force(&id);
    let view: Value = serde_json::from_str(&daemon.env.verb_ok("explain", &[&id, "--json"])).unwrap();
    assert!(view.to_string().contains(foreign), "{view:#}");
    let metrics = scrape(&daemon.env.metrics());
    assert!(metrics.contains("\ncrisp_resource_drift_total 1\n"), "{metrics}");
    agree(&daemon, &id, &events, &metrics);
    assert_eq!(history(&daemon, &id)[0]["drift"][0]["found"], foreign);
    spans_agree(&collector, &events);

    daemon.kill9();
    daemon.revive_with_failpoints("resize.recorded=kill");
    daemon.client().update(&id, limits(1000, 160)).unwrap_err();
    daemon.wait_ended();
    daemon.revive();
    events.push(Event { memory: ("192Mi", "160Mi"), outcome: "applied", reason: Some("recovery") });
    agree(&daemon, &id, &events, &metrics);
    assert_limits(&daemon, &id, 1000, 160);

    daemon.client().try_exec(&id, &["touch", "/go"], 5).unwrap();
    wait_for("the kernel's count of kills in the history", seconds(30), || {
        let kills = history(&daemon, &id)[2]["oom_kills"].to_string();
        (kills != "0" && kills == oom_kills(&daemon, &id)).then_some(())
    });
    agree(&daemon, &id, &events, &metrics);
    assert_eq!(history(&daemon, &id)[0]["oom_kills"], 0, "not with an earlier resize");
}
