//! From a blob's bytes to a layer's files: digest, decompression, digest again, tar.

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

/// A layer blob that did not become a layer.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The blob is not the one asked for.
    #[error("layer blob {wanted} came as {found}")]
    Blob {
        /// The digest in the manifest.
        wanted: Digest,
        /// The digest of what came.
        found: Digest,
    },
    /// The blob's length is not what the manifest says.
    #[error("layer blob {blob} is {wanted} bytes long, but {found} came")]
    Length {
        /// The blob.
        blob: Digest,
        /// The length in the manifest.
        wanted: u64,
        /// The length of what came.
        found: u64,
    },
    /// The tar stream is not the one the image config names.
    #[error("layer {wanted} unpacked to {found}")]
    DiffId {
        /// The diff id in the config.
        wanted: Digest,
        /// The digest of the tar stream.
        found: Digest,
    },
    /// Larger than the configured bound.
    #[error("layer is larger than {0} bytes")]
    TooLarge(u64),
    /// Compressed so that more memory is needed than a layer may have.
    #[error("layer cannot be decompressed in {0} bytes of memory, a layer's part of image.pull_memory")]
    Window(u64),
    /// The tar stream could not be unpacked.
    #[error(transparent)]
    Untar(#[from] UntarError),
    /// The blob could not be read or decompressed.
    #[error("reading layer {layer}")]
    Read {
        /// The layer's diff id.
        layer: Digest,
        /// What went wrong.
        source: io::Error,
    },
    /// The layer's own directory could not be used.
    #[error("{doing} {}", path.display())]
    Directory {
        /// The step.
        doing: &'static str,
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl UnpackError {
    /// The class of this error.
    pub fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Blob { .. } | Self::Length { .. } | Self::DiffId { .. } => model::ErrorKind::Invalid,
            // What is read may be written down on the way, and then the disk can be full.
            Self::Read { source, .. } if crate::store::durable::io_kind(source) == model::ErrorKind::Exhausted => {
                model::ErrorKind::Exhausted
            }
            Self::Read { .. } => model::ErrorKind::Invalid,
            Self::TooLarge(_) | Self::Window(_) => model::ErrorKind::Exhausted,
            Self::Untar(source) => source.kind(),
            Self::Directory { source, .. } => crate::store::durable::io_kind(source),
        }
    }

    /// Whether another source of the same blob may do better.
    pub(crate) fn blames_source(&self) -> bool {
        matches!(self, Self::Blob { .. } | Self::Length { .. })
    }
}

/// The blob a layer is read from, where its digest is known.
#[derive(Debug, Clone)]
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) pending: Pending,
    /// Of the layer's files and those that it replaced; a file of a layer below weighs there alone.
    pub(crate) usage: DiskUsage,
    /// Length of the tar stream.
    pub(crate) tar_bytes: u64,
}

/// Unpacks the layer read from `source` into `fs` of the directory `into`, and its tape beside that.
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
    // Its files hardly take less than the blob.
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
    // What stands in for links will be gone.
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

/// Reads a layer to its end and checks that it is `blob` and has this diff id. Nothing is written.
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

fn hash(stored: &mut impl Read, diff_id: &Digest, limits: &Limits) -> Result<(), UnpackError> {
    let read = |source| UnpackError::Read { layer: diff_id.clone(), source };
    let plain = BufReader::with_capacity(BUFFER, decompressed(stored, limits).map_err(read)?);
    let finished = Metered::new(plain, diff_id.hasher(), limits.unpacked_bytes).finish();
    let (found, _) = finished.map_err(|error| past_cap(&error).unwrap_or_else(|| read(error)))?;
    check_diff_id(found, diff_id)
}

/// The error for a stream that went past a bound: of its length, whichever of the two streams it was, or of memory.
pub(super) fn past_cap(error: &io::Error) -> Option<UnpackError> {
    let cause = error.get_ref()?;
    let length = cause.downcast_ref().map(|PastCap(cap)| UnpackError::TooLarge(*cap));
    length.or_else(|| cause.downcast_ref().map(|WindowTooLarge(window)| UnpackError::Window(*window)))
}

#[cfg(test)]
#[path = "tests/unpack.rs"]
mod tests;
