//! Unpacks a blob into a layer: digest, decompression, diff id, tar.

use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::verify::{check_blob, check_diff_id, may_be_wrong_blob};
use crate::digest::{Digest, Hasher, Metered, PastCap};
use crate::layer::confined_root::{ConfinedRoot, DiskUsage, disk_usage};
use crate::layer::decompress::{WindowTooLarge, decompressed};
use crate::layer::free_space::FreeSpace;
use crate::layer::replaced_files::REPLACED;
use crate::layer::staged_layer::Pending;
use crate::layer::untar::{UntarError, no_space, untar};
use crate::limits::Limits;
use crate::tar::reader::TarError;

const BUFFER: usize = 64 * 1024;

/// A layer blob that could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The blob has another digest than requested.
    #[error("received image layer {wanted} with another digest: {found}")]
    Blob {
        /// The digest in the manifest.
        wanted: Digest,
        /// The digest of the received content.
        found: Digest,
    },
    /// The blob has another length than in the manifest.
    #[error("received image layer {blob} with {found} bytes, expected {wanted}")]
    Length {
        /// The blob.
        blob: Digest,
        /// The length in the manifest.
        wanted: u64,
        /// The received length.
        found: u64,
    },
    /// The tar stream has another digest than in the image config.
    #[error("image layer {wanted} unpacks to content with another digest: {found}")]
    DiffId {
        /// The diff id in the config.
        wanted: Digest,
        /// The digest of the tar stream.
        found: Digest,
    },
    /// The layer is larger than the configured limit.
    #[error("the unpacked image layer is larger than {0} bytes, the maximum")]
    TooLarge(u64),
    /// Decompression needs more memory than a layer may use.
    #[error(
        "decompressing an image layer needs more than {0} bytes, its share of image.pull_memory: raise that setting"
    )]
    Window(u64),
    /// The tar stream could not be unpacked.
    #[error(transparent)]
    Untar(#[from] UntarError),
    /// The blob could not be read or decompressed.
    #[error("reading the content of image layer {layer}")]
    Read {
        /// The layer's diff id.
        layer: Digest,
        /// The error of the read.
        source: io::Error,
    },
    /// The layer's own directory cannot be used.
    #[error("{doing} {}", path.display())]
    Directory {
        /// The step.
        doing: &'static str,
        /// The directory.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
}

impl model::ErrorClass for UnpackError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Blob { .. } | Self::Length { .. } | Self::DiffId { .. } => model::ErrorKind::Invalid,
            // Reading may write to a temporary file, and then the disk can be full.
            Self::Read { source, .. } if crate::store::durable::io_kind(source) == model::ErrorKind::Exhausted => {
                model::ErrorKind::Exhausted
            }
            Self::Read { .. } => model::ErrorKind::Invalid,
            Self::TooLarge(_) | Self::Window(_) => model::ErrorKind::Exhausted,
            Self::Untar(source) => source.kind(),
            Self::Directory { source, .. } => crate::store::durable::io_kind(source),
        }
    }
}

impl UnpackError {
    /// Returns the class of an error of the disk; `None` if the layer itself is the cause.
    pub(crate) fn disk_kind(&self) -> Option<model::ErrorKind> {
        let kind = model::ErrorClass::kind(self);
        match self {
            Self::Directory { .. } | Self::Untar(UntarError::NoRoom(_)) => Some(kind),
            Self::Read { .. } => Some(kind).filter(|kind| *kind == model::ErrorKind::Exhausted),
            Self::Untar(UntarError::Make { .. }) => Some(kind).filter(|kind| *kind != model::ErrorKind::Invalid),
            Self::Untar(UntarError::Tar(_) | UntarError::Refused { .. } | UntarError::TooMany(_))
            | Self::Blob { .. }
            | Self::Length { .. }
            | Self::DiffId { .. }
            | Self::TooLarge(_)
            | Self::Window(_) => None,
        }
    }

    /// Returns whether another source of the same blob may succeed.
    pub(crate) fn blames_source(&self) -> bool {
        matches!(self, Self::Blob { .. } | Self::Length { .. })
    }
}

/// The blob of a layer, if its digest is known.
#[derive(Debug, Clone)]
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) pending: Pending,
    /// Disk usage of the layer's files and of those it replaced; a file of a layer below counts
    /// only there.
    pub(crate) usage: DiskUsage,
    /// Length of the tar stream.
    pub(crate) tar_bytes: u64,
}

/// Unpacks the layer read from `source` into `fs` of the directory `into`, and its tar-split beside
/// that.
pub(crate) fn unpack(
    source: impl Read,
    blob: Option<&Blob>,
    diff_id: &Digest,
    into: &Path,
    limits: &Limits,
) -> Result<Unpacked, UnpackError> {
    let (hasher, cap) = match blob {
        Some(blob) => (blob.digest.hasher(), blob.size.min(limits.layer_bytes)),
        None => (Hasher::sha256(), limits.layer_bytes),
    };
    if let Some(blob) = blob
        && blob.size > limits.layer_bytes
    {
        return Err(UnpackError::TooLarge(limits.layer_bytes));
    }
    // The files rarely need less space than the blob.
    FreeSpace::look(into, limits.reserve, blob.map_or(0, |blob| blob.size)).map_err(|error| no_space(error, into))?;
    let mut stored = Metered::new(source, hasher, cap);
    let extracted = extract(&mut stored, diff_id, into, limits);
    if let Some(blob) = blob
        && extracted.as_ref().err().is_none_or(|error| may_be_wrong_blob(error, blob))
    {
        check_blob(stored, blob, diff_id)?;
    }
    let (pending, tar_bytes) = extracted?;
    let usage = layer_disk_usage(into, &pending).map_err(|source| UnpackError::Directory {
        doing: "weighing",
        path: into.to_owned(),
        source,
    })?;
    Ok(Unpacked { pending, usage, tar_bytes })
}

fn layer_disk_usage(layer: &Path, pending: &Pending) -> io::Result<DiskUsage> {
    let layer = ConfinedRoot::open(layer)?;
    let replaced = match layer.directory(Path::new(REPLACED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other?),
    };
    let mut usage = disk_usage(layer.directory(Path::new("fs"))?.as_fd(), replaced.as_ref().map(AsFd::as_fd))?;
    // The placeholders of links will be removed.
    usage.inodes = usage.inodes.saturating_sub(u64::try_from(pending.links.len()).unwrap_or(u64::MAX));
    Ok(usage)
}

fn extract(
    stored: &mut impl Read,
    diff_id: &Digest,
    into: &Path,
    limits: &Limits,
) -> Result<(Pending, u64), UnpackError> {
    let read = |source| UnpackError::Read { layer: diff_id.clone(), source };
    let plain = BufReader::with_capacity(BUFFER, decompressed(stored, limits).map_err(read)?);
    let stream = Metered::new(plain, diff_id.hasher(), limits.unpacked_bytes);
    let (pending, stream) = match untar(stream, into, limits) {
        Ok(unpacked) => unpacked,
        Err(UntarError::Tar(TarError::Read(error))) => return Err(past_cap(&error).unwrap_or_else(|| read(error))),
        Err(error) => return Err(error.into()),
    };
    let finished = stream.finish();
    let (found, length) = finished.map_err(|error| past_cap(&error).unwrap_or_else(|| read(error)))?;
    check_diff_id(found, diff_id)?;
    Ok((pending, length))
}

/// Reads a layer to its end and checks digest, length and diff id. Writes nothing.
pub(crate) fn verify(source: impl Read, blob: &Blob, diff_id: &Digest, limits: &Limits) -> Result<(), UnpackError> {
    if blob.size > limits.layer_bytes {
        return Err(UnpackError::TooLarge(limits.layer_bytes));
    }
    let mut stored = Metered::new(source, blob.digest.hasher(), blob.size);
    let hashed = hash(&mut stored, diff_id, limits);
    if hashed.as_ref().err().is_none_or(|error| may_be_wrong_blob(error, blob)) {
        check_blob(stored, blob, diff_id)?;
    }
    hashed
}

/// Reads a layer whose blob is not known to its end and checks that it has this diff id. Writes nothing.
pub(crate) fn verify_diff_id(mut source: impl Read, diff_id: &Digest, limits: &Limits) -> Result<(), UnpackError> {
    hash(&mut Metered::new(&mut source, Hasher::sha256(), limits.layer_bytes), diff_id, limits)
}

fn hash(stored: &mut impl Read, diff_id: &Digest, limits: &Limits) -> Result<(), UnpackError> {
    let read = |source| UnpackError::Read { layer: diff_id.clone(), source };
    let plain = BufReader::with_capacity(BUFFER, decompressed(stored, limits).map_err(read)?);
    let finished = Metered::new(plain, diff_id.hasher(), limits.unpacked_bytes).finish();
    let (found, _) = finished.map_err(|error| past_cap(&error).unwrap_or_else(|| read(error)))?;
    check_diff_id(found, diff_id)
}

/// Returns the error for a stream that exceeded a limit: the length of either stream, or the
/// memory.
pub(super) fn past_cap(error: &io::Error) -> Option<UnpackError> {
    let cause = error.get_ref()?;
    let length = cause.downcast_ref().map(|PastCap(cap)| UnpackError::TooLarge(*cap));
    length.or_else(|| cause.downcast_ref().map(|WindowTooLarge(window)| UnpackError::Window(*window)))
}

#[cfg(test)]
#[path = "tests/unpack.rs"]
mod tests;
