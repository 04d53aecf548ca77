//! Spans of requests, where a collector is told of them.

use super::text::{Kind, Text};
use crate::otel::Tally;

pub(super) fn tell(text: &mut Text, tally: &Tally) {
    let ended = "Spans of requests, by what became of them: taken by the collector, or dropped.";
    let mut family = text.family("crisp_spans_total", Kind::Counter, ended);
    family.sample(&[("outcome", "exported")], tally.exported());
    family.sample(&[("outcome", "dropped")], tally.dropped());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_outcomes_are_told() {
        let mut text = Text::default();
        tell(&mut text, &Tally::default());
        let text = String::from(text);
        for outcome in ["exported", "dropped"] {
            assert!(text.contains(&format!("crisp_spans_total{{outcome=\"{outcome}\"}} 0\n")), "{text}");
        }
    }
}
