//! The number of a layer in the image store.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of a layer in the image store, which has its files in `layers/NUMBER/fs`.
///
/// In `launch.json` it is written as the directory `NUMBER/fs`, which shims of all releases mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LayerNumber(u64);

/// A text that is not the directory of a layer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected the directory of a layer such as 7/fs, got {0:?}")]
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
