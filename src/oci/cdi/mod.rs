//! CDI devices: resolves names of devices to changes of a container.
//!
//! A vendor's *spec* file defines devices of one kind, each by *edits* to a container: environment
//! variables, device nodes, mounts, hooks, groups. [`CdiRegistry`] finds the files of the configured
//! directories and the devices in them, [`Edits`] has the combined edits of a container's devices.
//!
//! ```text
//! file ─ parse ─ check ─▶ Spec ┐
//! file ─ parse ─ check ─▶ Spec ┼─▶ CdiRegistry::find(names) ─▶ Edits ─▶ OCI configuration
//! file ─ parse ─ rejected      ┘
//! ```
//!
//! Specs belong to root and may name any path and program of the host. They are checked nevertheless:
//! an error with the name of the field is clearer than a failed system call, and an invalid file
//! affects only its own devices.
//!
//! The crate `container-device-interface` (1.1.1) does the same and is not used: see docs/decisions.
//! The rules are those of the CDI specification 1.1.0, and otherwise those of its Go library, which
//! containerd and CRI-O use.

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
use model::{ErrorClass, ErrorKind, RequestField};
use oci_spec::OciSpecError;

/// A failure to resolve or apply a CDI device.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    #[error("{0}")]
    Unresolved(Unresolved),
    #[error("CDI device {device} requires {what}, which is not supported")]
    Beyond { device: String, what: String },
    #[error("CDI device {device}: device node {path}")]
    Node { device: String, path: PathBuf, source: io::Error },
    #[error("CDI device {device}: the device node {path} is not a device of the type in the CDI spec (cdi.spec_dirs)")]
    NodeKind { device: String, path: PathBuf },
    #[error("CDI device {device}: mount of {path}")]
    Source { device: String, path: PathBuf, source: io::Error },
    #[error("CDI device {device}: hook {path}")]
    Hook { device: String, path: PathBuf, source: io::Error },
    #[error("reading a CDI device in an annotation of the container")]
    Annotation { annotation: String, source: InvalidDeviceName },
    #[error("CDI device {device} of an annotation is not in CDI_devices, and cdi.annotations is false")]
    AnnotationsOff { annotation: String, device: String },
    #[error("building the config.json entries of the container's CDI devices")]
    Build(#[from] OciSpecError),
}

impl ErrorClass for CdiError {
    fn kind(&self) -> ErrorKind {
        match self {
            // The request is valid; a file or node that others must provide is missing.
            Self::Unresolved(_) | Self::Node { .. } | Self::NodeKind { .. } => ErrorKind::Precondition,
            Self::Source { .. } | Self::Hook { .. } | Self::AnnotationsOff { .. } => ErrorKind::Precondition,
            Self::Annotation { .. } => ErrorKind::Invalid,
            Self::Beyond { .. } => ErrorKind::Unsupported,
            Self::Build(_) => ErrorKind::Internal,
        }
    }

    fn field(&self) -> Option<RequestField> {
        match self {
            Self::Unresolved(_) | Self::Beyond { .. } | Self::Node { .. } => Some(RequestField::CdiDevices),
            Self::NodeKind { .. } | Self::Source { .. } | Self::Hook { .. } => Some(RequestField::CdiDevices),
            Self::Annotation { annotation, .. } | Self::AnnotationsOff { annotation, .. } => {
                Some(RequestField::Annotation(annotation.clone()))
            }
            Self::Build(_) => None,
        }
    }
}

/// All devices that were not found, and possible reasons.
#[derive(Debug, Default)]
pub struct Unresolved {
    missing: Vec<String>,
    /// Devices defined by several specs in one directory, with the files.
    conflicts: Vec<(String, Vec<PathBuf>)>,
    /// The directories that were searched.
    dirs: Vec<PathBuf>,
    /// The files and directories that could not be used, with their errors.
    bad: Vec<(PathBuf, String)>,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Further items are only counted: the text must fit into the header of a gRPC response.
        const LISTED_MAX: usize = 8;
        let paths = |paths: &[PathBuf]| paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
        let mut parts = Vec::new();
        if !self.missing.is_empty() {
            let names = listed(&self.missing, LISTED_MAX, Clone::clone);
            parts.push(match self.dirs.as_slice() {
                [] => format!("{names} not found: cdi.spec_dirs is empty"),
                dirs => format!("no CDI spec in {} defines {names}", paths(dirs)),
            });
        }
        for (device, files) in self.conflicts.iter().take(LISTED_MAX) {
            parts.push(format!("{device} is defined more than once: {}", paths(files)));
        }
        if !self.bad.is_empty() {
            let bad = listed(&self.bad, LISTED_MAX, |(path, problem)| format!("{}: {problem}", path.display()));
            parts.push(format!("not usable: {bad}"));
        }
        f.write_str(&parts.join("; "))
    }
}

fn listed<T>(all: &[T], max: usize, words: impl Fn(&T) -> String) -> String {
    let mut text = all.iter().take(max).map(words).collect::<Vec<_>>().join(", ");
    if let Some(more) = all.len().checked_sub(max).filter(|more| *more > 0) {
        text.push_str(&format!(", and {more} more"));
    }
    text
}
