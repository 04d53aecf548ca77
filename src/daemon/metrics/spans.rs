//! Writes the metrics of the trace exporter: exported and dropped spans.

use super::text::{Exposition, Kind};
use crate::otel::SpanCounters;

pub(super) fn write(text: &mut Exposition, counters: &SpanCounters) {
    let ended = "Trace spans of CRI requests by outcome: exported to the collector or dropped.";
    let mut family = text.family("crisp_spans_total", Kind::Counter, ended);
    family.sample(&[("outcome", "exported")], counters.exported());
    family.sample(&[("outcome", "dropped")], counters.dropped());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_outcomes_have_samples() {
        let mut text = Exposition::default();
        write(&mut text, &SpanCounters::default());
        let text = String::from(text);
        for outcome in ["exported", "dropped"] {
            assert!(text.contains(&format!("crisp_spans_total{{outcome=\"{outcome}\"}} 0\n")), "{text}");
        }
    }
}
