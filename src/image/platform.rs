//! Chooses the entry of an image index for this machine.

use serde::Deserialize;

use crate::manifest::{Descriptor, ManifestError};

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Platform {
    pub(crate) architecture: String,
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) variant: String,
}

/// Returns os, architecture and the supported variants of this machine, best first, as an index
/// names them.
pub(crate) fn host() -> (&'static str, &'static str, &'static [&'static str]) {
    match std::env::consts::ARCH {
        "x86_64" => ("linux", "amd64", &["", "v1"]),
        "aarch64" => ("linux", "arm64", &["v8", ""]),
        "arm" => ("linux", "arm", &["v7", "v6", "v5", ""]),
        "riscv64" => ("linux", "riscv64", &[""]),
        "powerpc64" => ("linux", "ppc64le", &[""]),
        other => ("linux", other, &[""]),
    }
}

/// Returns the entry of an index that fits this machine best.
pub(crate) fn choose(entries: &[Descriptor]) -> Result<&Descriptor, ManifestError> {
    let (os, architecture, variants) = host();
    let fits = |entry: &&Descriptor, variant: &str| {
        entry.platform.as_ref().is_some_and(|p| p.os == os && p.architecture == architecture && p.variant == variant)
    };
    variants
        .iter()
        .find_map(|variant| entries.iter().find(|entry| fits(entry, variant)))
        // A single entry without a platform is taken for this machine.
        .or(match entries {
            [only] if only.platform.is_none() => Some(only),
            _ => None,
        })
        .ok_or_else(|| ManifestError::NoPlatform {
            wanted: format!("{os}/{architecture}"),
            offered: entries
                .iter()
                .take(32)
                .map(|entry| match &entry.platform {
                    Some(p) => format!("{}/{}", p.os, p.architecture),
                    None => "an entry without platform".to_owned(),
                })
                .collect(),
        })
}
