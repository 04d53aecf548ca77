//! Writes metrics in Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write as _};

use model::metrics::histogram::Histogram;

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only increases, from zero at the daemon's start.
    Counter,
    Gauge,
    /// Cumulative counts of values per bucket.
    Histogram,
}

/// Families in text format.
#[derive(Debug, Default)]
pub(super) struct Exposition(String);

/// A family that samples are added to.
#[derive(Debug)]
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Exposition {
    /// Starts a family; each family may be started once.
    pub(super) fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        line(&mut self.0, format_args!("# HELP {name} {}", escaped(help, false)));
        line(&mut self.0, format_args!("# TYPE {name} {kind}"));
        Family { text: &mut self.0, name }
    }
}

impl Family<'_> {
    /// Adds a sample; its labels must be unique in the family.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.part("", labels, value);
    }

    /// Adds the samples of a histogram.
    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        for (bound, count) in histogram.buckets() {
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.to_string());
            self.part("_bucket", &[labels, &[("le", &bound)]].concat(), count);
        }
        self.part("_sum", labels, histogram.sum().as_secs_f64());
        self.part("_count", labels, histogram.count());
    }

    /// Adds a sample whose name has a suffix.
    fn part(&mut self, ending: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(self.name);
        self.text.push_str(ending);
        for (index, (name, value)) in labels.iter().enumerate() {
            let begin = if index == 0 { '{' } else { ',' };
            self.text.push(begin);
            self.text.push_str(name);
            self.text.push_str("=\"");
            self.text.push_str(&escaped(value, true));
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        line(self.text, format_args!(" {value}"));
    }
}

impl From<Exposition> for String {
    fn from(text: Exposition) -> Self {
        text.0
    }
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    writeln!(text, "{words}").ok();
}

/// Escapes characters that would end a value.
fn escaped(text: &str, quotes: bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => safe.push_str("\\\\"),
            '\n' => safe.push_str("\\n"),
            '"' if quotes => safe.push_str("\\\""),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_written_in_text_format() {
        let mut text = Exposition::default();
        text.family("a_total", Kind::Counter, "All of a.").sample(&[], 7);
        let mut b = text.family("b", Kind::Gauge, "Some b.");
        b.sample(&[("x", "1"), ("y", "2")], 0.5);
        b.sample(&[("x", "2"), ("y", "2")], u64::MAX);
        text.family("none", Kind::Gauge, "Without samples.");
        assert_eq!(
            String::from(text),
            "# HELP a_total All of a.\n# TYPE a_total counter\na_total 7\n\
             # HELP b Some b.\n# TYPE b gauge\nb{x=\"1\",y=\"2\"} 0.5\nb{x=\"2\",y=\"2\"} 18446744073709551615\n\
             # HELP none Without samples.\n# TYPE none gauge\n"
        );
    }

    #[test]
    fn labels_and_help_are_escaped() {
        let mut text = Exposition::default();
        text.family("a", Kind::Gauge, "back\\slash\n\"quote\"").sample(&[("l", "a\\b\"c\nd} 1")], 1);
        assert_eq!(
            String::from(text),
            "# HELP a back\\\\slash\\n\"quote\"\n# TYPE a gauge\na{l=\"a\\\\b\\\"c\\nd} 1\"} 1\n"
        );
    }
}
