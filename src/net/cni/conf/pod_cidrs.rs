//! UpdateRuntimeConfig: creates a network configuration for the node's pod CIDRs from a template.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use model::{ErrorClass, ErrorKind};
use safe_fs::FileError;

use super::cidr::{BadCidr, Cidr};
use super::dir::{self, DirError};
use super::template::{self, TemplateError};
use super::{ConfError, ConfList};
use crate::cni::Cni;

/// The file that crisp writes.
const OWN: &str = "10-crisp.conflist";

#[derive(Debug, thiserror::Error)]
pub enum PodCidrError {
    #[error("reading the pod CIDRs for the CNI template")]
    Cidr(#[from] BadCidr),
    #[error("reading the CNI template {path}")]
    Template { path: PathBuf, source: ConfError },
    #[error("filling in the CNI template {path}")]
    Follow { path: PathBuf, source: TemplateError },
    #[error("the CNI template {path} gives an invalid network configuration")]
    Invalid { path: PathBuf, source: ConfError },
    #[error(transparent)]
    Dir(#[from] DirError),
    #[error(transparent)]
    Write(#[from] FileError),
}

impl ErrorClass for PodCidrError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Cidr(e) => e.kind(),
            Self::Template { .. } | Self::Follow { .. } | Self::Invalid { .. } => ErrorKind::Precondition,
            Self::Dir(e) => e.kind(),
            Self::Write(e) => e.kind(),
        }
    }
}

/// The effect of new pod CIDRs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rendered {
    /// The request has none.
    NoCidr,
    /// No template is configured.
    NoTemplate,
    /// Another valid network configuration exists, in this file.
    NotNeeded(PathBuf),
    /// The file has the same content already.
    Unchanged(PathBuf),
    Written(PathBuf),
}

impl Cni {
    /// Renders [`Settings::template`](crate::cni::Settings::template) for these ranges, separated
    /// by commas, and writes the result unless the directory has another valid configuration.
    /// Blocks on file I/O.
    ///
    /// Invalid ranges are rejected in any case.
    pub fn set_pod_cidrs(&self, ranges: &str) -> Result<Rendered, PodCidrError> {
        if ranges.trim().is_empty() {
            return Ok(Rendered::NoCidr);
        }
        let cidrs = Cidr::parse_all(ranges)?;
        let settings = self.settings();
        let Some(template) = &settings.template else { return Ok(Rendered::NoTemplate) };
        let conf_dir = &settings.conf_dir;
        if let Some((other, _)) = dir::find_network_besides(conf_dir, Some(OsStr::new(OWN)))?.network {
            return Ok(Rendered::NotNeeded(other));
        }
        let text = make(template, &cidrs)?;
        let path = conf_dir.join(OWN);
        if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
            return Ok(Rendered::Unchanged(path));
        }
        write(&path, text.as_bytes())?;
        Ok(Rendered::Written(path))
    }
}

/// Returns the text of a valid network configuration.
fn make(template: &Path, cidrs: &[Cidr]) -> Result<String, PodCidrError> {
    let path = || template.to_owned();
    let unusable = |source| PodCidrError::Template { path: path(), source };
    let text = String::from_utf8(dir::read(template).map_err(unusable)?);
    let text = text.map_err(|bad| unusable(ConfError::Read(io::Error::new(io::ErrorKind::InvalidData, bad))))?;
    let text = template::render(&text, cidrs).map_err(|source| PodCidrError::Follow { path: path(), source })?;
    let list = ConfList::parse(text.as_bytes()).map_err(|source| PodCidrError::Invalid { path: path(), source })?;
    if list.plugins.is_empty() {
        return Err(PodCidrError::Invalid { path: path(), source: ConfError::Missing("plugins") });
    }
    Ok(text)
}

/// Replaces the file atomically and durably, and creates its directory if it is missing.
fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    if let Some(dir) = path.parent() {
        let created = DirBuilder::new().recursive(true).mode(0o755).create(dir);
        created.map_err(safe_fs::at("creating the directory", dir))?;
    }
    safe_fs::write_durable(path, bytes, 0o644, || {})
}
