//! A request and a limit in pod spec notation, and their conversion to cgroup values as in the kubelet.

use std::str::FromStr;

use model::resources::{Bytes, CpuPeriod, CpuQuota, CpuShares, InvalidLimits, MemoryLimit, Micros};
use model::{InvalidQuantity, Quantity};

/// The kernel's minimum quota, in microseconds.
const QUOTA_MIN: u64 = 1000;
/// Shares that the kubelet sets for a container without a request.
const SHARES_MIN: u64 = 2;
const SHARES_MAX: u64 = 262_144;
/// Shares of one CPU.
const SHARES_PER_CPU: u64 = 1024;

/// `[REQUEST/]LIMIT`: one amount sets both, `250m/` only the request, `/500m` only the limit; `/max` removes the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QuantityArg {
    pub(super) request: Option<Quantity>,
    pub(super) limit: Option<Limit>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Limit {
    Max,
    Of(Quantity),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum InvalidQuantityArg {
    #[error(transparent)]
    Quantity(#[from] InvalidQuantity),
    #[error("the limit of a resize must not be 0: use `max` to remove the limit")]
    Zero,
    #[error("request {request} must not exceed limit {limit} in the CPU or memory of a resize")]
    Above { request: Quantity, limit: Quantity },
    #[error("CPU or memory {0:?} of a resize has neither a request nor a limit: expected a form like 250m/500m")]
    Empty(String),
    #[error("CPU or memory {0} of a resize is too large for a cgroup limit, a number of 63 bits")]
    TooMuch(Quantity),
    #[error(transparent)]
    Limits(#[from] InvalidLimits),
}

impl FromStr for Limit {
    type Err = InvalidQuantityArg;

    fn from_str(text: &str) -> Result<Self, InvalidQuantityArg> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let quantity: Quantity = text.parse()?;
        if quantity.is_zero() { Err(InvalidQuantityArg::Zero) } else { Ok(Self::Of(quantity)) }
    }
}

impl FromStr for QuantityArg {
    type Err = InvalidQuantityArg;

    fn from_str(text: &str) -> Result<Self, InvalidQuantityArg> {
        let filled = |part: &'_ str| (!part.is_empty()).then(|| part.to_owned());
        let (request, limit) = match text.split_once('/') {
            Some((request, limit)) => (filled(request), filled(limit)),
            None if text == "max" => (None, filled(text)),
            None => (filled(text), filled(text)),
        };
        let request: Option<Quantity> = request.map(|text| text.parse()).transpose()?;
        let limit: Option<Limit> = limit.map(|text| text.parse()).transpose()?;
        match (&request, &limit) {
            (None, None) => Err(InvalidQuantityArg::Empty(text.to_owned())),
            (Some(request), Some(Limit::Of(limit))) if request > limit => {
                Err(InvalidQuantityArg::Above { request: request.clone(), limit: limit.clone() })
            }
            _ => Ok(Self { request, limit }),
        }
    }
}

/// Converts to thousandths of a CPU, rounded up as in the kubelet.
fn millis(cpus: &Quantity) -> Result<u64, InvalidQuantityArg> {
    u64::try_from(cpus.nanos().div_ceil(1_000_000)).map_err(|_| InvalidQuantityArg::TooMuch(cpus.clone()))
}

/// Converts a CPU request to shares, as the kubelet does.
pub(super) fn shares(request: &Quantity) -> Result<CpuShares, InvalidQuantityArg> {
    let shares = millis(request)?.saturating_mul(SHARES_PER_CPU) / 1000;
    let shares = i64::try_from(shares.clamp(SHARES_MIN, SHARES_MAX)).unwrap_or(i64::MAX);
    Ok(CpuShares::new(shares)?)
}

/// Converts a CPU limit to a quota, as the kubelet does.
pub(super) fn quota(limit: &Limit, period: CpuPeriod) -> Result<CpuQuota, InvalidQuantityArg> {
    let Limit::Of(limit) = limit else { return Ok(CpuQuota::Unlimited) };
    let quota =
        millis(limit)?.checked_mul(period.micros().0).ok_or_else(|| InvalidQuantityArg::TooMuch(limit.clone()))?;
    let quota = i64::try_from((quota / 1000).max(QUOTA_MIN)).map_err(|_| InvalidQuantityArg::TooMuch(limit.clone()))?;
    Ok(CpuQuota::new(quota)?)
}

/// Returns the lowest limit that the kernel accepts with this period.
pub(super) fn minimum_cpu(period: CpuPeriod) -> Quantity {
    let millis = (QUOTA_MIN * 1000).div_ceil(period.micros().0);
    // A number with the unit m is a valid quantity.
    format!("{millis}m").parse().unwrap_or_else(|_| unreachable!("{millis}m is a quantity"))
}

pub(super) fn memory(limit: &Limit) -> Result<MemoryLimit, InvalidQuantityArg> {
    let Limit::Of(limit) = limit else { return Ok(MemoryLimit::Unlimited) };
    let bytes = i64::try_from(limit.nanos().div_ceil(1_000_000_000));
    let bytes = bytes.map_err(|_| InvalidQuantityArg::TooMuch(limit.clone()))?;
    Ok(MemoryLimit::new("memory", bytes)?)
}

/// Returns a quota in microseconds; None means unlimited.
pub(super) fn cpu_micros(quota: CpuQuota) -> Option<u64> {
    match quota {
        CpuQuota::Unlimited => None,
        CpuQuota::Micros(Micros(micros)) => Some(micros),
    }
}

pub(super) fn memory_bytes(limit: MemoryLimit) -> Option<u64> {
    limit.bytes().map(|Bytes(bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Option<String>, Option<String>) {
        let QuantityArg { request, limit } = text.parse().unwrap();
        let limit = limit.map(|limit| match limit {
            Limit::Max => "max".to_owned(),
            Limit::Of(quantity) => quantity.to_string(),
        });
        (request.map(|request| request.to_string()), limit)
    }

    fn pair(request: Option<&str>, limit: Option<&str>) -> (Option<String>, Option<String>) {
        (request.map(str::to_owned), limit.map(str::to_owned))
    }

    #[test]
    fn one_amount_sets_both_and_a_slash_separates_request_and_limit() {
        assert_eq!(parsed("500m"), pair(Some("500m"), Some("500m")));
        assert_eq!(parsed("250m/500m"), pair(Some("250m"), Some("500m")));
        assert_eq!(parsed("250m/"), pair(Some("250m"), None));
        assert_eq!(parsed("/500m"), pair(None, Some("500m")));
        assert_eq!(parsed("/max"), pair(None, Some("max")));
        assert_eq!(parsed("max"), pair(None, Some("max")));
        assert_eq!(parsed("0/1Gi"), pair(Some("0"), Some("1Gi")));
    }

    #[test]
    fn invalid_amounts_are_refused() {
        for bad in ["", "/", "x", "0", "/0", "2/1", "1/2/3", "-1", "max/1"] {
            assert!(bad.parse::<QuantityArg>().is_err(), "{bad}");
        }
        assert!(matches!("600m/500m".parse::<QuantityArg>(), Err(InvalidQuantityArg::Above { .. })));
    }

    /// Expected values of the kubelet's MilliCPUToShares and MilliCPUToQuota.
    #[test]
    fn shares_and_quotas_are_the_same_as_in_the_kubelet() {
        let period = CpuPeriod::new(100_000).unwrap();
        for (cpus, wanted_shares, wanted_quota) in [
            ("1", 1024, 100_000),
            ("500m", 512, 50_000),
            ("250m", 256, 25_000),
            ("1m", 2, 1000),
            ("100u", 2, 1000),
            ("1.5", 1536, 150_000),
            ("333m", 340, 33_300),
            ("1000", 262_144, 100_000_000),
        ] {
            let quantity: Quantity = cpus.parse().unwrap();
            assert_eq!(shares(&quantity).unwrap().get(), wanted_shares, "{cpus}");
            assert_eq!(cpu_micros(quota(&Limit::Of(quantity), period).unwrap()), Some(wanted_quota), "{cpus}");
        }
        assert_eq!(shares(&"0".parse().unwrap()).unwrap().get(), 2);
        assert_eq!(quota(&Limit::Max, period).unwrap(), CpuQuota::Unlimited);
        let period = CpuPeriod::new(20_000).unwrap();
        assert_eq!(cpu_micros(quota(&"500m".parse().unwrap(), period).unwrap()), Some(10_000));
    }

    #[test]
    fn memory_is_rounded_up_to_whole_bytes() {
        assert_eq!(memory_bytes(memory(&"256Mi".parse().unwrap()).unwrap()), Some(256 << 20));
        assert_eq!(memory_bytes(memory(&"1500m".parse().unwrap()).unwrap()), Some(2));
        assert_eq!(memory(&Limit::Max).unwrap(), MemoryLimit::Unlimited);
    }
}
