//! Formats bytes, durations and CPUs for the output of commands, in the units of a pod spec.

use std::time::Duration;

use model::resources::{Bytes, CpuPeriod, CpuQuota, MemoryLimit, Micros};

/// The kernel's default CFS period, in microseconds.
pub(super) const PERIOD: u64 = 100_000;
/// Values from here on mean no limit; the kernel's exact value depends on the page size.
const NO_LIMIT: u64 = 1 << 62;

/// Formats bytes as in a pod spec, in the largest unit that gives a whole number: 256Mi, or 256M if it is not a whole
/// number of Mi.
pub(super) fn bytes(bytes: u64) -> String {
    if bytes >= NO_LIMIT {
        return "no limit".to_owned();
    }
    let units = [
        (1 << 40, "Ti"),
        (1 << 30, "Gi"),
        (1 << 20, "Mi"),
        (1_000_000_000_000, "T"),
        (1_000_000_000, "G"),
        (1_000_000, "M"),
        (1 << 10, "Ki"),
    ];
    match units.into_iter().find(|(size, _)| bytes >= *size && bytes.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", bytes / size),
        None => bytes.to_string(),
    }
}

/// Formats a duration in milliseconds, with at least two significant digits.
pub(super) fn milliseconds(time: Duration) -> String {
    match time.as_secs_f64() * 1000.0 {
        long if long >= 10.0 => format!("{long:.0} ms"),
        middle if middle >= 1.0 => format!("{middle:.1} ms"),
        short => format!("{short:.2} ms"),
    }
}

/// Formats measured bytes in MiB, with one decimal.
pub(super) fn measured(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

pub(super) fn memory(limit: MemoryLimit) -> String {
    match limit {
        MemoryLimit::Unlimited => "no limit".to_owned(),
        MemoryLimit::Bytes(Bytes(amount)) => bytes(amount),
    }
}

/// Formats a quota as a number of CPUs, as in a pod spec.
pub(super) fn cpus(quota: CpuQuota, period: Option<CpuPeriod>) -> String {
    match quota {
        CpuQuota::Unlimited => "no limit".to_owned(),
        CpuQuota::Micros(Micros(quota)) => millis(quota * 1000 / period.map_or(PERIOD, |period| period.micros().0)),
    }
}

/// Formats thousandths of a CPU.
pub(super) fn millis(millis: u64) -> String {
    if millis.is_multiple_of(1000) { (millis / 1000).to_string() } else { format!("{millis}m") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_formatted_as_in_a_pod_spec() {
        for (amount, text) in [
            (0, "0"),
            (1000, "1000"),
            (1024, "1Ki"),
            (256_000_000, "256M"),
            (2_000_000_000, "2G"),
            (1_500_000_000, "1500M"),
            (500 << 10, "500Ki"),
            (64 << 20, "64Mi"),
            (1536 << 20, "1536Mi"),
            (3 << 30, "3Gi"),
            ((1 << 63) - 4096, "no limit"),
        ] {
            assert_eq!(bytes(amount), text);
        }
        assert_eq!(measured((3 << 20) + (1 << 19)), "3.5 MiB");
    }

    #[test]
    fn times_below_a_millisecond_are_not_rounded_to_0() {
        for (micros, text) in [(213, "0.21 ms"), (1_250, "1.2 ms"), (12_500, "12 ms")] {
            assert_eq!(milliseconds(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn a_quota_is_formatted_relative_to_its_period() {
        let period = |micros| Some(CpuPeriod::new(micros).unwrap());
        assert_eq!(cpus(CpuQuota::Micros(Micros(50_000)), None), "500m");
        assert_eq!(cpus(CpuQuota::Micros(Micros(50_000)), period(25_000)), "2");
        assert_eq!(cpus(CpuQuota::Unlimited, period(25_000)), "no limit");
    }
}
