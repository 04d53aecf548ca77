//! Qualified names of Kubernetes, used for resources and annotations.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid resource name {0:?}: expected a form like memory or example.com/gpu")]
pub struct InvalidName(String);

/// A name with an optional domain as prefix: `memory`, `example.com/gpu`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QualifiedName(String);

impl QualifiedName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for QualifiedName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let named = match text.split_once('/') {
            Some((domain, name)) => is_domain(domain) && is_name(name),
            None => is_name(text),
        };
        if named { Ok(Self(text.to_owned())) } else { Err(InvalidName(text.to_owned())) }
    }
}

/// Returns whether `text` has letters and digits and, not at its ends, `-`, `_` and `.`.
fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.len() <= 63 && text.bytes().all(inner) && has_ends(text.as_bytes(), |b| b.is_ascii_alphanumeric())
}

/// Returns whether `text` is a DNS name in lower case.
fn is_domain(text: &str) -> bool {
    let outer = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |label: &str| label.bytes().all(|b| outer(b) || b == b'-') && has_ends(label.as_bytes(), outer);
    text.len() <= 253 && text.split('.').all(label)
}

fn has_ends(bytes: &[u8], good: impl Fn(u8) -> bool) -> bool {
    matches!((bytes.first(), bytes.last()), (Some(first), Some(last)) if good(*first) && good(*last))
}

/// Allows lookup in a map by `str`, which has the same order.
impl Borrow<str> for QualifiedName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for QualifiedName {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<QualifiedName> for String {
    fn from(name: QualifiedName) -> String {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_valid_in_kubernetes_are_accepted() {
        let longest = format!("{}/{}", vec!["a".repeat(63); 3].join("."), "b".repeat(63));
        for good in ["cpu", "memory", "hugepages-2Mi", "example.com/gpu", "a", "A_b.c-1", "x.y/Z", &longest] {
            assert_eq!(good.parse::<QualifiedName>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn names_invalid_in_kubernetes_are_refused() {
        let (long, domain) = ("a".repeat(64), format!("{}/x", "a.".repeat(127) + "a"));
        for bad in [
            "",
            " ",
            "cpu ",
            "c pu",
            "-cpu",
            "cpu-",
            ".cpu",
            "cpu\n",
            "c\0u",
            "/",
            "/gpu",
            "example.com/",
            "a/b/c",
            "Example.com/gpu",
            "a..b/c",
            "-a/b",
            "a_b/c",
            "gpü",
            &long,
            &domain,
        ] {
            assert!(bad.parse::<QualifiedName>().is_err(), "{bad:?}");
        }
    }
}
