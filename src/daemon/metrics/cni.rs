//! Writes the metrics of CNI plugins: calls by outcome, and their durations.

use std::collections::BTreeMap;

use net::cni::{Calls, Operation};

use super::text::{Exposition, Kind};

pub(super) fn write(text: &mut Exposition, operations: &BTreeMap<Operation, Calls>) {
    let ended = "Calls of CNI plugins by operation, network, plugin and outcome.";
    let mut family = text.family("crisp_cni_operations_total", Kind::Counter, ended);
    for (operation, Calls { succeeded, failed, timed_out, durations: _ }) in operations {
        let [verb, network, plugin] = labels(operation);
        for (outcome, count) in [("succeeded", succeeded), ("failed", failed), ("timed_out", timed_out)] {
            family.sample(&[verb, network, plugin, ("outcome", outcome)], count);
        }
    }
    let took = "Duration of calls of CNI plugins by operation, network and plugin.";
    let mut family = text.family("crisp_cni_operation_duration_seconds", Kind::Histogram, took);
    for (operation, calls) in operations {
        family.histogram(&labels(operation), &calls.durations);
    }
}

fn labels(Operation { verb, network, plugin }: &Operation) -> [(&str, &str); 3] {
    [("operation", verb), ("network", network), ("plugin", plugin)]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::metrics::histogram::Histogram;

    use super::*;

    #[test]
    fn every_operation_has_all_outcomes_and_a_histogram() {
        let mut durations = Histogram::new(&[0.1, 1.0]);
        durations.note(Duration::from_millis(250));
        let operation = Operation { verb: "ADD", network: "net".to_owned(), plugin: "bridge".to_owned() };
        let calls = Calls { succeeded: 1, failed: 0, timed_out: 0, durations };
        let mut text = Exposition::default();
        write(&mut text, &BTreeMap::from([(operation, calls)]));
        let text = String::from(text);
        let labels = "operation=\"ADD\",network=\"net\",plugin=\"bridge\"";
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                format!("crisp_cni_operations_total{{{labels},outcome=\"succeeded\"}} 1"),
                format!("crisp_cni_operations_total{{{labels},outcome=\"failed\"}} 0"),
                format!("crisp_cni_operations_total{{{labels},outcome=\"timed_out\"}} 0"),
                format!("crisp_cni_operation_duration_seconds_bucket{{{labels},le=\"0.1\"}} 0"),
                format!("crisp_cni_operation_duration_seconds_bucket{{{labels},le=\"1\"}} 1"),
                format!("crisp_cni_operation_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 1"),
                format!("crisp_cni_operation_duration_seconds_sum{{{labels}}} 0.25"),
                format!("crisp_cni_operation_duration_seconds_count{{{labels}}} 1"),
            ]
        );
    }
}
