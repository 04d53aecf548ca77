//! Parses Kubernetes quantities: `500m`, `1.5Gi`, `2e3`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A text that is not a quantity, or whose value cannot be represented exactly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuantity {
    #[error("invalid Kubernetes quantity {0:?}: expected a form like 500m, 1.5Gi or 2e3")]
    Malformed(String),
    #[error("invalid Kubernetes quantity {0:?}: must not be negative")]
    Negative(String),
    #[error("invalid Kubernetes quantity {0:?}: must be at most 2^63-1")]
    TooLarge(String),
    #[error("invalid Kubernetes quantity {0:?}: must be a multiple of 1n")]
    TooFine(String),
    #[error(
        "invalid Kubernetes quantity {0:?}: must have at most {DIGITS_MAX} digits without leading and trailing zeros"
    )]
    TooManyDigits(String),
    #[error("invalid Kubernetes quantity of {0} bytes: must be at most {LENGTH_MAX}")]
    TooLong(usize),
}

/// In bytes. A longer text is padded with zeros, or its value is out of range.
const LENGTH_MAX: usize = 64;
/// Any number of 38 decimal digits fits into 128 bits.
const DIGITS_MAX: usize = 38;
/// In billionths: 2^63-1, the largest quantity of Kubernetes.
const NANOS_MAX: u128 = ((1 << 63) - 1) * 1_000_000_000;

/// A non-negative amount: its original text and its exact value.
///
/// Accepts Kubernetes' grammar of quantities: a sign, digits with a point among, before or after
/// them, and one suffix of `n u m k M G T P E`, `Ki Mi Gi Ti Pi Ei`, or `e` or `E` with a whole
/// number. Kubernetes rounds values finer than `1n` and caps values above 2^63-1; this type rejects
/// both, so the value always equals the text. Quantities are compared by value: `1000m` equals `1`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Quantity {
    text: String,
    nanos: u128,
}

impl Quantity {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the value in billionths.
    pub fn nanos(&self) -> u128 {
        self.nanos
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }
}

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        if text.len() > LENGTH_MAX {
            return Err(InvalidQuantity::TooLong(text.len()));
        }
        let malformed = || InvalidQuantity::Malformed(text.to_owned());
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return Err(malformed());
        }
        let Scale { twos, tens } = scale(suffix).ok_or_else(malformed)?;
        let digits = format!("{whole}{fraction}");
        let (digits, padding) = significant(&digits);
        if digits.len() > DIGITS_MAX {
            return Err(InvalidQuantity::TooManyDigits(text.to_owned()));
        }
        // An empty text means 0; up to DIGITS_MAX digits always fit.
        let mantissa = digits.parse().unwrap_or(0);
        let nanos = nanos(mantissa, twos, tens + padding - count(fraction)).map_err(|beyond| match beyond {
            Beyond::Large => InvalidQuantity::TooLarge(text.to_owned()),
            Beyond::Fine => InvalidQuantity::TooFine(text.to_owned()),
        })?;
        if text.starts_with('-') && nanos != 0 {
            return Err(InvalidQuantity::Negative(text.to_owned()));
        }
        Ok(Self { text: text.to_owned(), nanos })
    }
}

/// The factor of a suffix: 2^`twos` · 10^`tens`, where `tens` may be negative.
struct Scale {
    twos: u32,
    tens: i64,
}

fn scale(suffix: &str) -> Option<Scale> {
    let (twos, tens) = match suffix {
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "" => (0, 0),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        other => (0, exponent(other.strip_prefix(['e', 'E'])?)?),
    };
    Some(Scale { twos, tens })
}

fn exponent(text: &str) -> Option<i64> {
    /// No text within LENGTH_MAX has enough digits to compensate for such an exponent, so larger
    /// ones are capped to it.
    const ENOUGH: i64 = 1000;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse().map_or(ENOUGH, |size: i64| size.min(ENOUGH));
    Some(if text.starts_with('-') { -size } else { size })
}

/// Returns the digits without leading and trailing zeros, and the number of trailing zeros.
fn significant(digits: &str) -> (&str, i64) {
    let cut = digits.trim_end_matches('0');
    (cut.trim_start_matches('0'), count(&digits[cut.len()..]))
}

/// Returns the length of a part of a quantity, which is at most LENGTH_MAX.
fn count(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

enum Beyond {
    Large,
    Fine,
}

/// Returns `mantissa` · 2^`twos` · 10^`tens` in billionths.
fn nanos(mut mantissa: u128, mut twos: u32, tens: i64) -> Result<u128, Beyond> {
    if mantissa == 0 {
        return Ok(0);
    }
    let mut tens = tens + 9;
    // Divides by 10 as by 5 and by 2; the 2 may come from the suffix. All divisions come before the
    // multiplications, so that no intermediate value overflows if the result fits.
    while tens < 0 {
        if !mantissa.is_multiple_of(5) || (twos == 0 && !mantissa.is_multiple_of(2)) {
            return Err(Beyond::Fine);
        }
        mantissa /= 5;
        match twos.checked_sub(1) {
            Some(fewer) => twos = fewer,
            None => mantissa /= 2,
        }
        tens += 1;
    }
    let power = u32::try_from(tens).ok().and_then(|tens| 10_u128.checked_pow(tens));
    let value = power.and_then(|power| mantissa.checked_mul(power)?.checked_mul(1 << twos));
    value.filter(|value| *value <= NANOS_MAX).ok_or(Beyond::Large)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl TryFrom<String> for Quantity {
    type Error = InvalidQuantity;

    fn try_from(text: String) -> Result<Self, InvalidQuantity> {
        text.parse()
    }
}

impl From<Quantity> for String {
    fn from(quantity: Quantity) -> String {
        quantity.text
    }
}

#[cfg(test)]
mod tests;
