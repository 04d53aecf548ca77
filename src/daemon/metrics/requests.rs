//! Metrics of requests: durations and gRPC codes.

use std::collections::BTreeMap;

use super::text::{Exposition, Kind};
use crate::grpc::Latency;

pub(super) fn write(text: &mut Exposition, latencies: &BTreeMap<String, Latency>) {
    let ended = "Completed CRI requests by RPC and gRPC code.";
    let mut family = text.family("crisp_requests_total", Kind::Counter, ended);
    for (rpc, latency) in latencies {
        for (code, count) in &latency.codes {
            family.sample(&[("rpc", rpc), ("code", code)], count);
        }
    }
    let took = "Duration of CRI requests by RPC; Import and Export to the end of their streams, other streams until they start.";
    let mut family = text.family("crisp_request_duration_seconds", Kind::Histogram, took);
    for (rpc, Latency { durations, codes: _ }) in latencies {
        family.histogram(&[("rpc", rpc)], durations);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_are_counted_in_cumulative_buckets() {
        let mut latency = Latency { codes: BTreeMap::from([("OK", 9)]), ..Latency::default() };
        let times =
            [(2, Duration::from_micros(500)), (3, Duration::from_millis(1)), (4, Duration::from_millis(61_750))];
        for (count, duration) in times {
            (0..count).for_each(|_| latency.durations.note(duration));
        }
        let mut text = Exposition::default();
        write(&mut text, &BTreeMap::from([("Version".to_owned(), latency)]));
        let text = String::from(text);
        assert!(text.contains("# TYPE crisp_request_duration_seconds histogram\n"), "{text}");
        for line in [
            "crisp_requests_total{rpc=\"Version\",code=\"OK\"} 9",
            "crisp_request_duration_seconds_bucket{rpc=\"Version\",le=\"0.0005\"} 2",
            "crisp_request_duration_seconds_bucket{rpc=\"Version\",le=\"0.001\"} 5",
            "crisp_request_duration_seconds_bucket{rpc=\"Version\",le=\"60\"} 5",
            "crisp_request_duration_seconds_bucket{rpc=\"Version\",le=\"+Inf\"} 9",
            "crisp_request_duration_seconds_sum{rpc=\"Version\"} 247.004",
            "crisp_request_duration_seconds_count{rpc=\"Version\"} 9",
        ] {
            assert!(text.lines().any(|reported| reported == line), "{line}: {text}");
        }
    }
}
