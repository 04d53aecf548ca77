//! Formats amounts for output.

use model::resources::{Bytes, CpuPeriod, CpuQuota, MemoryLimit, Micros};

/// The kernel's default CFS period, in microseconds.
pub(super) const PERIOD: u64 = 100_000;
/// Values from here on mean no limit; the kernel's exact value depends on the page size.
const NO_LIMIT: u64 = 1 << 62;

/// Formats bytes as in a pod spec, in the largest binary unit that gives a whole number.
pub(super) fn bytes(bytes: u64) -> String {
    if bytes >= NO_LIMIT {
        return "no limit".to_owned();
    }
    let units = [(1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    match units.into_iter().find(|(size, _)| bytes >= *size && bytes.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", bytes / size),
        None => bytes.to_string(),
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
    fn a_quota_is_formatted_relative_to_its_period() {
        let period = |micros| Some(CpuPeriod::new(micros).unwrap());
        assert_eq!(cpus(CpuQuota::Micros(Micros(50_000)), None), "500m");
        assert_eq!(cpus(CpuQuota::Micros(Micros(50_000)), period(25_000)), "2");
        assert_eq!(cpus(CpuQuota::Unlimited, period(25_000)), "no limit");
    }
}
