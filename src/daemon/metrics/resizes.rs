//! Writes the metrics of resizes: outcomes, durations and reclaimed memory.

use super::text::{Exposition, Kind};
use crate::runtime::{Outcome, ResizeNotices, ResizeOutcomes};

pub(super) fn write(text: &mut Exposition, resizes: &ResizeOutcomes, notices: &ResizeNotices) {
    let ended = "Completed resizes of pods and containers, by outcome and reason.";
    let mut family = text.family("crisp_resizes_total", Kind::Counter, ended);
    for outcome in Outcome::ALL {
        let (word, reason) = outcome.words();
        family.sample(&[("outcome", word), ("reason", reason.unwrap_or("none"))], resizes.counted(outcome));
    }
    let took = "Duration of applied resizes by direction and resource.";
    let mut family = text.family("crisp_resize_duration_seconds", Kind::Histogram, took);
    for ((direction, resource), durations) in resizes.times().durations() {
        family.histogram(&[("direction", direction), ("resource", resource)], &durations);
    }
    let reclaimed = "Memory that was reclaimed while resizes lowered limits, in bytes.";
    let mut family = text.family("crisp_resize_reclaimed_bytes_total", Kind::Counter, reclaimed);
    family.sample(&[], resizes.times().reclaimed());
    let sent = "Notices of resizes to containers, by kind and outcome.";
    let mut family = text.family("crisp_resize_notices_total", Kind::Counter, sent);
    for (kind, outcome, count) in notices.counts() {
        family.sample(&[("kind", kind), ("outcome", outcome)], count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_a_sample_from_the_start() {
        let mut text = Exposition::default();
        write(&mut text, &ResizeOutcomes::default(), &ResizeNotices::default());
        let text = String::from(text);
        for (outcome, reason) in [
            ("applied", "none"),
            ("unchanged", "none"),
            ("refused", "below_usage"),
            ("rolled_back", "write"),
            ("rollback_failed", "none"),
        ] {
            let labels = format!("outcome=\"{outcome}\",reason=\"{reason}\"");
            assert!(text.contains(&format!("crisp_resizes_total{{{labels}}} 0\n")), "{text}");
        }
        assert_eq!(text.matches("\ncrisp_resize_notices_total{").count(), 6);
        assert_eq!(text.matches("\ncrisp_resizes_total{").count(), Outcome::ALL.len());
    }
}
