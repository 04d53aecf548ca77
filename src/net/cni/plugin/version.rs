//! Versions of the CNI specification, and the one used with the plugins of a network.

use std::fmt;

/// A supported version of the specification. Later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    V0_1_0,
    V0_2_0,
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl Version {
    pub(crate) const ALL: [Self; 7] =
        [Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];
    pub(crate) const NEWEST: Self = Self::V1_1_0;
    /// The version of a configuration without cniVersion.
    pub(crate) const UNSAID: Self = Self::V0_1_0;

    /// Returns `None` for an unsupported version. Plugins compare the text, so each has one
    /// spelling.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Returns whether the version has CHECK, and a DEL with prevResult.
    pub(crate) fn has_check(self) -> bool {
        self >= Self::V0_4_0
    }

    /// Returns whether the version has STATUS and GC.
    pub(crate) fn has_status(self) -> bool {
        self >= Self::V1_1_0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Formats versions for messages.
pub(crate) fn listed(versions: &[Version]) -> String {
    versions.iter().map(|version| version.as_str()).collect::<Vec<_>>().join(", ")
}
