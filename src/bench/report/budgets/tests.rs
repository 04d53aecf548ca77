use super::*;
use crate::report::results::Unit;
use crate::report::tests::{example, summary};
use crate::{lifecycle, pull, reads};

fn found<'a>(verdicts: &'a [Verdict], what: &str) -> Option<&'a Verdict> {
    verdicts.iter().find(|verdict| verdict.what == what)
}

#[test]
fn only_measured_budgets_have_a_result() {
    let report = example();
    let verdicts = check_all(&report);
    let ready = found(&verdicts, "pod + container ready, built-in network").unwrap();
    assert!(ready.met && ready.sure && !ready.at_least);
    assert_eq!(ready.floor.map(|floor| (floor * 10.0).round()), Some(5.0));
    assert!(found(&verdicts, "pod + container ready, the same CNI plugins").is_none());
    assert!(found(&verdicts, "ExecSync").is_none());
    let floor = found(&verdicts, "pod + container ready, to the baseline").unwrap();
    assert!((1.9..2.1).contains(&floor.measured.ratio) && floor.met && floor.to.is_none(), "{floor:?}");
    let stream = found(&verdicts, "exec output, bytes a second").unwrap();
    assert!(stream.met && stream.at_least && stream.measured.ratio > 9.0);
}

#[test]
fn growth_and_sizes_are_computed_from_crisp_alone() {
    let verdicts = check_all(&example());
    let growth = found(&verdicts, "ready with 400 pods to 10").unwrap();
    assert!((1.1..1.3).contains(&growth.measured.ratio) && growth.met && growth.to.is_none());
    assert!(found(&verdicts, "shim of a pod, 25 pods").unwrap().met);
    assert_eq!(found(&verdicts, "daemon with 400 containers").unwrap().measured.ratio, 10.0);
}

#[test]
fn a_result_with_the_limit_in_its_interval_is_not_sure() {
    let mut report = example();
    // Half of the values on either side of the limit.
    let limit = 1.0;
    for (runtime, values) in report.runtimes.iter_mut().zip([[0.8, 1.2, 0.9, 1.1, 0.7, 1.4], [1.0; 6]]) {
        let status = runtime.figures.iter_mut().find(|figure| figure.name == reads::STATUS).unwrap();
        status.values = values.to_vec();
    }
    report.compare_and_check();
    let status = found(&report.budgets, "ContainerStatus").unwrap();
    assert!(status.measured.low < limit && limit < status.measured.high && !status.sure, "{status:?}");
    assert!(["met?", "missed?"].contains(&status.word()));
}

#[test]
fn the_budget_depends_on_the_network() {
    let mut report = example();
    report.settings.same_cni = true;
    let verdicts = check_all(&report);
    assert!(found(&verdicts, "pod + container ready, built-in network").is_none());
    assert_eq!(found(&verdicts, "pod + container ready, the same CNI plugins").unwrap().limit, 1.0 / 7.0);
}

#[test]
fn a_budget_for_an_image_size_is_judged_with_that_size_only() {
    let mut report = example();
    for (runtime, ms) in report.runtimes.iter_mut().zip([100.0, 250.0]) {
        runtime.figures.push(summary(pull::ABSENT, Unit::Ms, &[ms; 5]));
    }
    let names = ["pull of 20 layers and 500 MiB", "pull of 1 layer and 2 MiB"];
    for (size, expected) in [
        (None, [None, None]),
        (Some("20x500"), [Some(false), None]),
        (Some("1x2"), [None, Some(true)]),
        (Some("3x2"), [None, None]),
    ] {
        report.settings.pull_size = size.map(|text| text.parse().unwrap());
        report.compare_and_check();
        assert_eq!(names.map(|name| found(&report.budgets, name).map(|verdict| verdict.met)), expected, "{size:?}");
    }
}

#[test]
fn teardown_is_judged_by_the_file_system_of_the_writable_layers() {
    let mut report = example();
    for (runtime, ms) in report.runtimes.iter_mut().zip([10.0, 200.0]) {
        runtime.figures.push(summary(lifecycle::TEARDOWN, Unit::Ms, &[ms; 5]));
    }
    for (filesystem, expected) in
        [("tmpfs /x", [Some(false), None]), ("ext4 /x", [None, Some(true)]), ("xfs /x", [None, None])]
    {
        report.runtimes[0].directories[0].filesystem = filesystem.to_owned();
        report.compare_and_check();
        let met = |name| found(&report.budgets, name).map(|verdict| verdict.met);
        assert_eq!([met("teardown, tmpfs"), met("teardown, ext4")], expected, "{filesystem}");
    }
}

#[test]
fn performance_md_lists_every_budget_with_its_command() {
    let page = include_str!("../../../../docs/performance.md");
    for budget in BUDGETS {
        let (sign, limit) = match budget.limit {
            AtMost(limit) => ("≤", limit),
            AtLeast(limit) => ("≥", limit),
        };
        let limit = if limit < 0.5 + f64::EPSILON && !budget.of.is_size() {
            format!("1/{:.0}", 1.0 / limit)
        } else {
            format!("{limit}")
        };
        let of = match budget.of {
            of if of.is_size() => " MB",
            _ => "",
        };
        let row = format!("| {} | {sign} {limit}{of} | `hack/dev bench {}` |", budget.what, budget.words);
        assert!(page.contains(&row), "row not found in docs/performance.md: {row}");
    }
}
