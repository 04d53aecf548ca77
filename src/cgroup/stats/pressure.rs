//! Parses the kernel's pressure stall information (PSI) of CPU, memory and I/O.

use model::stats::{Pressure, Stall};

/// Reads a text such as
/// ```text
/// some avg10=1.53 avg60=0.80 avg300=0.21 total=176961051
/// full avg10=0.00 avg60=0.00 avg300=0.00 total=0
/// ```
pub(super) fn parse(text: &str) -> Option<Pressure> {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Some(Pressure { some: stall(line("some")?)?, full: line("full").and_then(stall) })
}

fn stall(line: &str) -> Option<Stall> {
    let value = |name: &str| line.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let percent = |name: &str| value(name)?.parse::<f64>().ok().filter(|percent| percent.is_finite());
    Some(Stall {
        avg10: percent("avg10")?,
        avg60: percent("avg60")?,
        avg300: percent("avg300")?,
        // The kernel's microseconds.
        total: value("total")?.parse::<u64>().ok()?.checked_mul(1000)?,
    })
}
