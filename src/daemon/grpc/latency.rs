//! Durations and gRPC codes of requests, by RPC.

use std::collections::BTreeMap;
use std::time::Duration;

use model::metrics::histogram::Histogram;
use sync::Mutex;
use tonic::Code;

/// Upper bounds of the histogram's buckets, in seconds; longer durations are in the last bucket.
const BOUNDS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];
/// The maximum number of names that are counted separately, more than there are RPCs: clients can
/// request any name.
const NAMES: usize = 100;
/// The name for all others.
const OTHER: &str = "other";

/// All requests since the daemon's start.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Mutex<BTreeMap<String, Latency>>);

/// The requests of one RPC.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Latency {
    pub(crate) durations: Histogram,
    /// The number of requests by code; disconnected clients count as CANCELLED.
    pub(crate) codes: BTreeMap<&'static str, u64>,
}

impl Default for Latency {
    fn default() -> Self {
        Self { durations: Histogram::new(&BOUNDS), codes: BTreeMap::new() }
    }
}

impl Latencies {
    pub(super) fn note(&self, rpc: &str, duration: Duration, code: Code) {
        let mut all = self.0.lock();
        let known = all.contains_key(rpc);
        let is_name = rpc.len() <= 64 && !rpc.is_empty() && rpc.bytes().all(|b| b.is_ascii_alphanumeric());
        let name = if known || (is_name && all.len() < NAMES) { rpc } else { OTHER };
        let latency = match all.get_mut(name) {
            Some(latency) => latency,
            None => all.entry(name.to_owned()).or_default(),
        };
        latency.durations.note(duration);
        *latency.codes.entry(word(code)).or_default() += 1;
    }

    pub(crate) fn all(&self) -> BTreeMap<String, Latency> {
        self.0.lock().clone()
    }
}

/// Returns the name of a code as in the gRPC specification.
fn word(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_in_its_bucket_and_under_its_code() {
        let latencies = Latencies::default();
        latencies.note("Version", Duration::from_micros(500), Code::Ok);
        latencies.note("Version", Duration::from_micros(501), Code::Ok);
        latencies.note("Version", Duration::from_secs(61), Code::NotFound);
        let version = &latencies.all()["Version"];
        let buckets: Vec<_> = version.durations.buckets().map(|(_, count)| count).collect();
        assert_eq!((buckets[0], buckets[1], buckets[BOUNDS.len() - 1], buckets[BOUNDS.len()]), (1, 2, 2, 3));
        assert_eq!(version.durations.sum(), Duration::from_micros(61_001_001));
        assert_eq!(version.codes, BTreeMap::from([("OK", 2), ("NOT_FOUND", 1)]));
    }

    #[test]
    fn unknown_names_do_not_accumulate() {
        let latencies = Latencies::default();
        for number in 0..NAMES * 2 {
            latencies.note(&format!("Name{number}"), Duration::ZERO, Code::Unimplemented);
        }
        for odd in ["", "a b", "a\"}\n", &"x".repeat(65)] {
            latencies.note(odd, Duration::ZERO, Code::Unimplemented);
        }
        let all = latencies.all();
        assert_eq!(all.len(), NAMES + 1);
        assert_eq!(all[OTHER].codes["UNIMPLEMENTED"], u64::try_from(NAMES + 4).unwrap());
    }
}
