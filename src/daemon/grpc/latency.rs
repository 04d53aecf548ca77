//! How long requests take, and how they end, by call.

use std::collections::BTreeMap;
use std::time::Duration;

use sync::Mutex;
use tonic::Code;

/// Upper bounds of the classes that durations are counted in, in seconds; whatever is longer is in the last one.
pub(crate) const BOUNDS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];
/// Calls by different names that are told apart: more than there are. Anybody can ask for anything.
const NAMES: usize = 100;
/// What the others are called.
const OTHER: &str = "other";

/// Of all calls, since the daemon's start.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Mutex<BTreeMap<String, Latency>>);

/// Of one call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Latency {
    /// How many duration no longer than each of [`BOUNDS`], and longer than the one before; the last have no bound.
    pub(crate) classes: [u64; BOUNDS.len() + 1],
    pub(crate) sum: Duration,
    /// How many ended with each code; those whose caller hung up are among the cancelled.
    pub(crate) codes: BTreeMap<&'static str, u64>,
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
        let seconds = duration.as_secs_f64();
        let class = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        latency.classes[class] += 1;
        latency.sum += duration;
        *latency.codes.entry(word(code)).or_default() += 1;
    }

    pub(crate) fn all(&self) -> BTreeMap<String, Latency> {
        self.0.lock().clone()
    }
}

/// As gRPC's own documents write it.
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
    fn a_request_is_counted_in_its_class_and_under_its_code() {
        let latencies = Latencies::default();
        latencies.note("Version", Duration::from_micros(500), Code::Ok);
        latencies.note("Version", Duration::from_micros(501), Code::Ok);
        latencies.note("Version", Duration::from_secs(61), Code::NotFound);
        let version = &latencies.all()["Version"];
        assert_eq!((version.classes[0], version.classes[1], version.classes[BOUNDS.len()]), (1, 1, 1));
        assert_eq!(version.classes.iter().sum::<u64>(), 3);
        assert_eq!(version.sum, Duration::from_micros(61_001_001));
        assert_eq!(version.codes, BTreeMap::from([("OK", 2), ("NOT_FOUND", 1)]));
    }

    #[test]
    fn names_that_nobody_knows_do_not_pile_up() {
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
