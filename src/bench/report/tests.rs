use serde_json::Value;

use super::*;
use crate::{background_pods, lifecycle, reads, stream};

pub(in super::super) fn summary(name: &str, unit: Unit, values: &[f64]) -> Summary {
    let name = name.to_owned();
    Summary::from(&Figure { name, unit, values: values.to_vec(), errors: 0, first_error: None })
}

fn measured(name: &str, version: &str, slower: f64) -> Measured {
    let about = |center: f64| (0..20).map(|n| center * (0.9 + 0.01 * f64::from(n))).collect::<Vec<f64>>();
    let step = |pods: usize, ready: f64| Growth {
        pods,
        containers: pods * 2,
        figures: vec![
            summary(lifecycle::READY, Unit::Ms, &about(ready)),
            summary(background_pods::DAEMON, Unit::MB, &[10.0]),
            summary(background_pods::SHIM, Unit::MB, &[0.7]),
        ],
    };
    let mut failing = summary("RunPodSandbox", Unit::Ms, &about(5.0 * slower));
    failing.errors = 2;
    failing.first_error = Some("Internal: <broken> & \"odd\"\u{7}".to_owned());
    Measured {
        name: name.to_owned(),
        version: version.to_owned(),
        socket: format!("/run/{name}.sock"),
        directories: vec![Directory {
            of: "images",
            path: "/var/lib/x".into(),
            filesystem: "tmpfs /var/lib".to_owned(),
        }],
        shares_program: name == "crisp",
        processor_time_from: "the daemon's cgroup",
        errors: 2,
        figures: vec![
            failing,
            summary(lifecycle::READY, Unit::Ms, &about(10.0 * slower)),
            summary(reads::STATUS, Unit::Ms, &about(0.5 * slower)),
            summary(stream::EXEC, Unit::MBPerSecond, &about(900.0 / slower)),
            summary("empty", Unit::Ms, &[]),
            summary("nothing", Unit::Ms, &[0.0, 0.0]),
        ],
        growth: vec![step(10, 10.0), step(25, 11.0), step(200, 12.0), step(400, 12.0)],
    }
}

/// Returns a report with content in every part.
pub(in super::super) fn example() -> Report {
    let mut report = Report {
        crisp: "0",
        began: 1,
        date: "1970-01-01T00:00:01Z".to_owned(),
        command: "crisp bench life --html <file>".to_owned(),
        machine: Machine {
            host: "node".to_owned(),
            kernel: "6.18".to_owned(),
            processors: 2,
            cgroups: "v1".to_owned(),
        },
        settings: Settings {
            image: "i".to_owned(),
            rounds: 20,
            pods: 25,
            containers: 2,
            at_once: 4,
            stream_mib: 1,
            log_mib: 1,
            host_network: false,
            same_cni: false,
            pull_size: None,
        },
        runtimes: vec![measured("crisp", "crisp 0", 1.0), measured("the <peer>", "containerd 1.6", 20.0)],
        floor: vec![summary(lifecycle::READY, Unit::Ms, &[5.0, 5.0, 6.0])],
        comparisons: Vec::new(),
        budgets: Vec::new(),
    };
    report.compare_and_check();
    report
}

#[test]
fn the_json_has_figures_ratios_growth_and_budgets() {
    let json: Value = serde_json::to_value(example()).unwrap();
    let ready = &json["runtimes"][0]["figures"][1];
    assert_eq!((&ready["name"], &ready["unit"]), (&"pod + container ready".into(), &"ms".into()));
    assert_eq!((&ready["count"], &ready["errors"]), (&20.into(), &0.into()));
    assert_eq!(ready["values"].as_array().unwrap().len(), 20);
    assert_eq!(json["runtimes"][0]["figures"][0]["errors"], 2);
    assert!(ready["p50"].as_f64().unwrap() <= ready["p90"].as_f64().unwrap());
    let comparisons = json["comparisons"].as_array().unwrap();
    let found = comparisons.iter().find(|found| found["figure"] == "pod + container ready").unwrap();
    assert_eq!(found["to"], "the <peer>");
    let [low, ratio, high] = ["low", "ratio", "high"].map(|key| found[key].as_f64().unwrap());
    assert!(low <= ratio && ratio <= high && (0.045..0.055).contains(&ratio), "{found}");
    assert_eq!(json["runtimes"][1]["growth"][2]["pods"], 200);
    let budget = &json["budgets"][0];
    assert_eq!((&budget["met"], &budget["sure"], &budget["to"]), (&true.into(), &true.into(), &"the <peer>".into()));
    assert_eq!(json["floor"][0]["name"], "pod + container ready");
}

#[test]
fn percentiles_need_enough_values() {
    let of = |count: u32| summary("x", Unit::Ms, &(0..count).map(f64::from).collect::<Vec<_>>());
    for (count, p90, p99) in
        [(9, None, None), (10, Some(8.0), None), (99, Some(89.0), None), (100, Some(89.0), Some(98.0))]
    {
        let summary = of(count);
        assert_eq!((summary.p90, summary.p99), (p90, p99), "{count} values");
    }
    assert_eq!(of(6).p50, Some(2.5), "the median, as in the plots and ratios");
}

#[test]
fn a_figure_that_failed_every_time_is_found() {
    let mut report = example();
    assert!(report.failed_figure().is_none(), "single failures are not enough");
    let empty = report.runtimes[1].figures.iter_mut().find(|figure| figure.name == "empty").unwrap();
    empty.errors = 3;
    let (runtime, figure) = report.failed_figure().unwrap();
    assert_eq!((runtime, figure.name.as_str(), figure.errors), ("the <peer>", "empty", 3));
}

#[test]
fn missing_values_have_no_ratio() {
    let report = example();
    assert!(report.ratio("empty", "the <peer>").is_none() && report.ratio("nothing", "the <peer>").is_none());
    assert!(report.ratio(lifecycle::READY, "absent").is_none());
}
