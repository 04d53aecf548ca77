//! Metrics of requests: durations and gRPC codes.

use std::collections::BTreeMap;

use super::text::{Exposition, Kind};
use crate::grpc::{BOUNDS, Latency};

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
    for (rpc, Latency { classes, sum, codes: _ }) in latencies {
        let mut count = 0;
        for (class, bound) in classes.iter().zip(BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()])) {
            count += class;
            family.part("_bucket", &[("rpc", rpc), ("le", &bound)], count);
        }
        family.part("_sum", &[("rpc", rpc)], sum.as_secs_f64());
        family.part("_count", &[("rpc", rpc)], count);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn classes_add_up() {
        let mut classes = [0; BOUNDS.len() + 1];
        (classes[0], classes[1], classes[BOUNDS.len()]) = (2, 3, 4);
        let latency = Latency { classes, sum: Duration::from_millis(2500), codes: BTreeMap::from([("OK", 9)]) };
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
            "crisp_request_duration_seconds_sum{rpc=\"Version\"} 2.5",
            "crisp_request_duration_seconds_count{rpc=\"Version\"} 9",
        ] {
            assert!(text.lines().any(|reported| reported == line), "{line}: {text}");
        }
    }
}
