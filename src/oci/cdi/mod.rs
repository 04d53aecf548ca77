//! CDI devices: what a container is given for the name of a device.
//!
//! A vendor's *spec* file describes devices of one kind, each by *edits* to a container: variables, device nodes, mounts,
//! hooks, groups. [`CdiRegistry`] finds the files of the configured directories and the devices in them, [`Edits`] is what the
//! devices of one container come to.
//!
//! ```text
//! file ─ raw ─ check ─▶ Spec ┐
//! file ─ raw ─ check ─▶ Spec ┼─▶ Specs::find(names) ─▶ Edits ─▶ OCI configuration
//! file ─ raw ─ refused       ┘
//! ```
//!
//! Specs come from root and may name any path and program of the host: that is what they are for. What they say is
//! checked all the same, since a wrong one is better refused by the name of its field than found out by the kernel, and
//! one bad file takes none but its own devices with it.
//!
//! The crate `container-device-interface` (1.1.1) does the same and is not used: see ARCHITECTURE.md. The rules are
//! those of the CDI specification 1.1.0, and where it is silent those of its Go library, which the peers use.

mod annotations;
mod edits;
mod file;
mod file_format;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod registry;
mod spec;
mod validate;
mod version;

#[cfg(test)]
mod registry_tests;
#[cfg(test)]
mod validate_tests;

pub use annotations::devices as annotated;
pub use edits::{Edits, InjectedDevice, Owner};
pub use registry::CdiRegistry;

use std::path::PathBuf;
use std::{fmt, io};

use model::cdi_name::InvalidDeviceName;
use model::{ErrorClass, ErrorKind};
use oci_spec::OciSpecError;

/// A device that a container cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    #[error("config.CDI_devices: {0}")]
    Unresolved(Unresolved),
    #[error("config.CDI_devices: {device} asks for {what}, which crisp cannot do")]
    Beyond { device: String, what: String },
    #[error("config.CDI_devices: {device}: device node {path}")]
    Node { device: String, path: PathBuf, source: io::Error },
    #[error("config.CDI_devices: {device}: {path} is not the kind of device that the spec says")]
    NodeKind { device: String, path: PathBuf },
    #[error("config.CDI_devices: {device}: mount of {path}")]
    Source { device: String, path: PathBuf, source: io::Error },
    #[error("config.CDI_devices: {device}: hook {path}")]
    Hook { device: String, path: PathBuf, source: io::Error },
    #[error("config.annotations[{annotation}]")]
    Annotation { annotation: String, source: InvalidDeviceName },
    #[error(
        "config.annotations[{annotation}]: asks for CDI device {device}, which is not among config.CDI_devices, and \
         cdi.annotations is off"
    )]
    AnnotationsOff { annotation: String, device: String },
    #[error("describing a CDI device")]
    Build(#[from] OciSpecError),
}

impl ErrorClass for CdiError {
    fn kind(&self) -> ErrorKind {
        match self {
            // The name is a good one: what is missing is what somebody else has to put there.
            Self::Unresolved(_) | Self::Node { .. } | Self::NodeKind { .. } => ErrorKind::Precondition,
            Self::Source { .. } | Self::Hook { .. } | Self::AnnotationsOff { .. } => ErrorKind::Precondition,
            Self::Annotation { .. } => ErrorKind::Invalid,
            Self::Beyond { .. } => ErrorKind::Unsupported,
            Self::Build(_) => ErrorKind::Internal,
        }
    }
}

/// All the devices that could not be found, and what may be the reason.
#[derive(Debug, Default)]
pub struct Unresolved {
    missing: Vec<String>,
    /// Devices that two specs of equal rank describe, with the files.
    conflicts: Vec<(String, Vec<PathBuf>)>,
    /// Where specs were looked for.
    dirs: Vec<PathBuf>,
    /// The files and directories that could not be used, and why.
    bad: Vec<(PathBuf, String)>,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// More are only counted: the text has to fit into the header of an answer.
        const TOLD: usize = 8;
        let paths = |paths: &[PathBuf]| paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
        let mut parts = Vec::new();
        if !self.missing.is_empty() {
            let names = listed(&self.missing, TOLD, Clone::clone);
            parts.push(match self.dirs.as_slice() {
                [] => format!("cdi.spec_dirs is empty, so there is no {names}"),
                dirs => format!("no CDI spec in {} has {names}", paths(dirs)),
            });
        }
        for (device, files) in self.conflicts.iter().take(TOLD) {
            parts.push(format!("{device} is described more than once: {}", paths(files)));
        }
        if !self.bad.is_empty() {
            let bad = listed(&self.bad, TOLD, |(path, problem)| format!("{}: {problem}", path.display()));
            parts.push(format!("not usable: {bad}"));
        }
        f.write_str(&parts.join("; "))
    }
}

fn listed<T>(all: &[T], told: usize, words: impl Fn(&T) -> String) -> String {
    let mut text = all.iter().take(told).map(words).collect::<Vec<_>>().join(", ");
    if let Some(more) = all.len().checked_sub(told).filter(|more| *more > 0) {
        text.push_str(&format!(", and {more} more"));
    }
    text
}
