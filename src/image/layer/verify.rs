//! Compares a layer with its digests: the blob with its descriptor, the uncompressed tar with its diff ID.

use std::io::Read;

use super::unpack::{Blob, UnpackError, past_cap};
use crate::digest::{Digest, Metered};
use crate::layer::untar::UntarError;

/// Returns whether the blob may be wrong: a stream that cannot be decoded is most often a wrong
/// blob, and that error is more useful.
pub(super) fn may_be_wrong_blob(error: &UnpackError, blob: &Blob) -> bool {
    match error {
        UnpackError::Read { .. } | UnpackError::DiffId { .. } => true,
        UnpackError::Untar(error) => matches!(error, UntarError::Tar(_)),
        UnpackError::TooLarge(cap) => *cap == blob.size,
        UnpackError::Blob { .. }
        | UnpackError::Length { .. }
        | UnpackError::Window(_)
        | UnpackError::Directory { .. } => false,
    }
}

/// Reads the rest of a blob and compares length and digest with the manifest.
pub(super) fn check_blob(stored: Metered<impl Read>, blob: &Blob, diff_id: &Digest) -> Result<(), UnpackError> {
    let Blob { digest, size: wanted } = blob.clone();
    let (found, length) = match stored.finish() {
        Ok(finished) => finished,
        Err(error) if past_cap(&error).is_some() => {
            return Err(UnpackError::Length { blob: digest, wanted, found: wanted.saturating_add(1) });
        }
        Err(source) => return Err(UnpackError::Read { layer: diff_id.clone(), source }),
    };
    if length != wanted {
        return Err(UnpackError::Length { blob: digest, wanted, found: length });
    }
    if found == digest { Ok(()) } else { Err(UnpackError::Blob { wanted: digest, found }) }
}

/// Compares the digest of the uncompressed tar stream with the diff id in the image config.
pub(super) fn check_diff_id(found: Digest, diff_id: &Digest) -> Result<(), UnpackError> {
    if found == *diff_id { Ok(()) } else { Err(UnpackError::DiffId { wanted: diff_id.clone(), found }) }
}
