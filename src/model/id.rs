//! Ids of pods and containers: 64 hexadecimal digits, as every CRI client expects.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A text that is not an id.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("invalid id {0:?}: expected 64 lower-case hexadecimal digits")]
pub struct IdError(String);

macro_rules! id {
    ($name:ident, $what:literal) => {
        #[doc = concat!("The id of a ", $what, ".")]
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Creates an id from 32 random bytes.
            #[must_use]
            pub fn from_bytes(random: [u8; 32]) -> Self {
                Self(random.iter().map(|b| format!("{b:02x}")).collect())
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Returns the first 13 digits, as crictl shows them.
            #[must_use]
            pub fn short(&self) -> &str {
                &self.0[..13]
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                let hex = text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                if hex { Ok(Self(text)) } else { Err(IdError(text)) }
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.short())
            }
        }
    };
}

id!(PodId, "pod");
id!(ContainerId, "container");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_64_hex_digits_and_nothing_else() {
        let id = PodId::from_bytes([0xab; 32]);
        assert_eq!(id.as_str(), "ab".repeat(32));
        assert_eq!(PodId::try_from("ab".repeat(32)), Ok(id));
        for bad in ["", "AB", &"AB".repeat(32), &"zz".repeat(32), "../../etc/passwd", &"ab".repeat(33)] {
            assert!(PodId::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
