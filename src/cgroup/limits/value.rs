//! The values of knobs: the text as read or to be written, and its meaning, parsed once.

use std::fmt;

use model::resources::{Bytes, CpuSet};
use serde::{Serialize, Serializer};

/// The meaning of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// No limit: `max`, `-1`, or the number of bytes that v1 shows for it.
    Unlimited,
    Number(u64),
    /// `cpu.max`; a missing period means that the period does not change.
    Bandwidth {
        quota: Option<u64>,
        period: Option<u64>,
    },
    Set(CpuSet),
    /// A text without a known form, an empty set, or a damaged number.
    Text,
}

/// A value of a knob. Serialised as its text, which is also what is written to the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnobValue {
    text: String,
    value: Value,
}

/// The form of a knob's values, and how the kernel changes a value between writing and reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Rounded down to a multiple of `granule`: whole pages.
    Bytes { granule: u64 },
    /// Shown in the kernel's own notation.
    Set,
    /// As written.
    Number,
    /// As written; a quota may be written without its period.
    Bandwidth,
    /// Unknown.
    Opaque,
}

impl KnobValue {
    pub(crate) fn parse(form: Form, text: impl Into<String>) -> Self {
        let text = text.into();
        let value = match form {
            Form::Bytes { .. } => limit(&text),
            Form::Number => number(&text),
            Form::Bandwidth => bandwidth(&text),
            Form::Set => CpuSet::new(&text).ok().map(Value::Set),
            Form::Opaque => None,
        };
        Self { text, value: value.unwrap_or(Value::Text) }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Returns a limit in bytes: outer `None` if the value is not one, inner `None` for unlimited.
    pub(crate) fn limit(&self) -> Option<Option<Bytes>> {
        let parsed = if self.value == Value::Text { limit(&self.text)? } else { self.value.clone() };
        match parsed {
            Value::Unlimited => Some(None),
            Value::Number(n) => Some(Some(Bytes(n))),
            Value::Bandwidth { .. } | Value::Set(_) | Value::Text => None,
        }
    }

    /// Returns a set; `None` if it is empty, so that the parent's set is in force.
    pub(crate) fn set(&self) -> Option<CpuSet> {
        match &self.value {
            Value::Set(set) => Some(set.clone()),
            Value::Unlimited | Value::Number(_) | Value::Bandwidth { .. } | Value::Text => None,
        }
    }

    /// Returns whether both values are the same setting for the kernel.
    pub(crate) fn same(&self, other: &Self, form: Form) -> bool {
        self.text.trim() == other.text.trim()
            || match (&self.value, &other.value, form) {
                (Value::Number(a), Value::Number(b), Form::Bytes { granule }) => a - a % granule == b - b % granule,
                (Value::Text, _, _) | (_, Value::Text, _) => false,
                (a, b, _) => a == b,
            }
    }
}

impl fmt::Display for KnobValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for KnobValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// v1 shows "no limit" as the largest number of whole pages, which depends on the page size; it is
/// more than the memory of any machine.
pub(crate) const NO_LIMIT: u64 = 1 << 62;

fn limit(text: &str) -> Option<Value> {
    match text.trim() {
        "max" | "-1" => Some(Value::Unlimited),
        number => memparse(number).map(|n| if n < NO_LIMIT { Value::Number(n) } else { Value::Unlimited }),
    }
}

fn number(text: &str) -> Option<Value> {
    match text.trim() {
        "max" | "-1" => Some(Value::Unlimited),
        number => number.parse().ok().map(Value::Number),
    }
}

fn bandwidth(text: &str) -> Option<Value> {
    let (quota, period) = match text.trim().split_once(' ') {
        Some((quota, period)) => (quota, Some(period.parse().ok()?)),
        None => (text.trim(), None),
    };
    let quota = if quota == "max" { None } else { Some(quota.parse().ok()?) };
    Some(Value::Bandwidth { quota, period })
}

/// Parses an amount of memory as the kernel does: hexadecimal, octal, and with a suffix for powers
/// of 1024.
fn memparse(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        b'P' => (&text[..text.len() - 1], 50),
        // The last digit of a hexadecimal number, not a suffix.
        b'E' if !text.starts_with("0x") && !text.starts_with("0X") => (&text[..text.len() - 1], 60),
        _ => (text, 0),
    };
    let number = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(digits, 8)
    } else {
        digits.parse()
    };
    number.ok()?.checked_mul(1 << shift)
}
