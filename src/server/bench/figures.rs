//! What was measured, by name, and the table of it.

use std::io::{self, Write};
use std::time::Duration;

use super::Measured;

/// Values by name, in the order in which the names first came.
#[derive(Debug, Default)]
pub(super) struct Figures(Vec<(&'static str, Vec<f64>)>);

impl Figures {
    pub(super) fn add(&mut self, name: &'static str, value: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => self.0.push((name, vec![value])),
        }
    }

    /// Adds a time in milliseconds.
    pub(super) fn add_time(&mut self, name: &'static str, time: Duration) {
        self.add(name, time.as_secs_f64() * 1000.0);
    }

    fn of(&self, name: &str) -> &[f64] {
        self.0.iter().find(|(known, _)| *known == name).map_or(&[], |(_, values)| values)
    }
}

/// The least of `values` that `percent` of them do not exceed.
fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// Prints percentiles for each runtime, and the ratio of its medians to those of the first.
pub(super) fn print(out: &mut impl Write, measured: &Measured) -> io::Result<()> {
    let Some((_, first)) = measured.first() else { return Ok(()) };
    for (socket, figures) in measured {
        writeln!(out, "{}", socket.display())?;
        writeln!(out, "{:<26}{:>12}{:>12}{:>12}{:>10}", "", "p50", "p90", "p99", "ratio")?;
        for (name, values) in &figures.0 {
            let [p50, p90, p99] = [50, 90, 99].map(|percent| percentile(values, percent));
            let ratio = p50 / percentile(first.of(name), 50);
            writeln!(out, "{name:<26}{p50:>12.3}{p90:>12.3}{p99:>12.3}{ratio:>10.2}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=11).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50), 6.0);
        assert_eq!(percentile(&values, 90), 10.0);
        assert_eq!(percentile(&values[..3], 90), 11.0);
        assert_eq!(percentile(&[], 50), 0.0);
    }

    #[test]
    fn a_table_compares_medians_with_those_of_the_first() {
        let figures = |values: [f64; 3]| {
            let mut figures = Figures::default();
            for value in values {
                figures.add("walk", value);
            }
            figures.add_time("run", Duration::from_micros(500));
            figures
        };
        let measured = vec![("/a".into(), figures([1.0, 2.0, 30.0])), ("/b".into(), figures([5.0, 1.0, 9.0]))];
        let mut out = Vec::new();
        print(&mut out, &measured).unwrap();
        let text = String::from_utf8(out).unwrap();
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[2], ["walk", "2.000", "30.000", "30.000", "1.00"]);
        assert_eq!(words[6], ["walk", "5.000", "9.000", "9.000", "2.50"]);
        assert_eq!(words[7], ["run", "0.500", "0.500", "0.500", "1.00"]);
    }
}
