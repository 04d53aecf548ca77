//! Amounts as a pod spec writes them: `500m`, `1.5Gi`, `2e3`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A text that is no amount, or one that cannot be kept exactly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuantity {
    #[error("{0:?} is no quantity: must be like 500m, 1.5Gi or 2e3")]
    Malformed(String),
    #[error("{0:?} is negative")]
    Negative(String),
    #[error("{0:?} is too large: at most 2^63-1")]
    TooLarge(String),
    #[error("{0:?} is too fine: must be a whole number of n")]
    TooFine(String),
    #[error("{0:?} has too many digits: at most {DIGITS_MAX} beside leading and trailing zeros")]
    TooManyDigits(String),
    #[error("{0} bytes are too long for a quantity: at most {LENGTH_MAX}")]
    TooLong(usize),
}

/// Longer texts are padded with zeros, or beyond every bound.
const LENGTH_MAX: usize = 64;
/// As many as 128 bits have room for, whichever they are.
const DIGITS_MAX: usize = 38;
/// In billionths. Kubernetes' largest amount with a binary suffix; of all the others, more than there is.
const NANOS_MAX: u128 = ((1 << 63) - 1) * 1_000_000_000;

/// An amount that is not negative: its text as it was given, and its exact value.
///
/// Takes what Kubernetes' grammar of quantities has: a sign, digits with a point among, before or after them, and one suffix
/// of `n u m k M G T P E`, `Ki Mi Gi Ti Pi Ei`, or `e` or `E` with a whole number. Kubernetes rounds what is finer than `1n` and
/// cuts what is more than 2^63-1; here both are refused, so that a value is always the one in the text. Equal are amounts of
/// the same value: `1000m` and `1`.
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

    /// The value in billionths.
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
        // No digits at all are zero, and any others fit.
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

/// What a suffix multiplies by: so many twos and so many tens, the latter perhaps less than none.
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
    /// More than the digits of any text that is short enough can make up for: a larger one changes nothing.
    const ENOUGH: i64 = 1000;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse().map_or(ENOUGH, |size: i64| size.min(ENOUGH));
    Some(if text.starts_with('-') { -size } else { size })
}

/// The digits without zeros around them, and how many zeros followed.
fn significant(digits: &str) -> (&str, i64) {
    let cut = digits.trim_end_matches('0');
    (cut.trim_start_matches('0'), count(&digits[cut.len()..]))
}

/// The length of a part of a quantity, which is short.
fn count(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

enum Beyond {
    Large,
    Fine,
}

/// `mantissa` · 2^`twos` · 10^`tens` in billionths.
fn nanos(mut mantissa: u128, mut twos: u32, tens: i64) -> Result<u128, Beyond> {
    if mantissa == 0 {
        return Ok(0);
    }
    let mut tens = tens + 9;
    // To take a ten away is to take a five and a two away; a suffix may have twos to spare. Before anything is multiplied, so
    // that nothing overflows on the way to a value that fits.
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
#[path = "quantity_tests.rs"]
mod tests;
