//! Ids of pods and containers, 64 hexadecimal digits as every CRI client expects, and numbers of
//! image layers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A text that is not an id.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("invalid pod or container ID {0:?}: expected 64 lower-case hexadecimal digits")]
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

/// The number of a layer in the image store, which has its files in `layers/NUMBER/fs`.
///
/// In `launch.json` it is written as the directory `NUMBER/fs`, which shims of all releases mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LayerNumber(u64);

/// A text that is not the directory of a layer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid layer directory {0:?} in a container's record: expected a form like 7/fs")]
pub struct InvalidLayerDirectory(String);

impl LayerNumber {
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// Returns the directory of the layer's files, relative to that of all layers.
    #[must_use]
    pub fn directory(self) -> String {
        format!("{}/fs", self.0)
    }

    /// Returns the value of the overlayfs option `lowerdir` for layers, top-most first.
    #[must_use]
    pub fn lowerdir(layers: &[Self]) -> String {
        layers.iter().map(|layer| layer.directory()).collect::<Vec<_>>().join(":")
    }
}

impl fmt::Display for LayerNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<LayerNumber> for String {
    fn from(layer: LayerNumber) -> Self {
        layer.directory()
    }
}

impl TryFrom<String> for LayerNumber {
    type Error = InvalidLayerDirectory;

    fn try_from(directory: String) -> Result<Self, InvalidLayerDirectory> {
        let number = directory.strip_suffix("/fs").and_then(|number| number.parse().ok());
        number.map(Self).ok_or(InvalidLayerDirectory(directory))
    }
}

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

    #[test]
    fn layers_are_written_as_directories() {
        let layers = [LayerNumber(12), LayerNumber(7)];
        assert_eq!(LayerNumber::lowerdir(&layers), "12/fs:7/fs");
        let json = serde_json::to_string(&layers).unwrap();
        assert_eq!(json, r#"["12/fs","7/fs"]"#);
        assert_eq!(serde_json::from_str::<[LayerNumber; 2]>(&json).unwrap(), layers);
        for other in ["", "/fs", "x/fs", "../1/fs", "1", "1/fs/", "-1/fs"] {
            assert!(LayerNumber::try_from(other.to_owned()).is_err(), "{other}");
        }
    }
}
