//! Downloads a blob into an unpacker and resumes it after interruptions.

use std::sync::Arc;

use crate::digest::Digest;
use crate::layer::decompress::is_cheap_to_decode;
use crate::layer::unpack::Blob;
use crate::registry::body::Pieces;
use crate::registry::fetch_error::{Attempt, Attempts, FetchError};
use crate::registry::pull::Pull;
use crate::registry::repository::Repository;
use crate::registry::retry::Backoff;
use crate::registry::transfer::pipe::PipeWriter;
use crate::registry::transfer::places::Transfer;

/// An endpoint that sends at least this much before an interruption is retried; less counts as a
/// failure.
const WORTH_IT: u64 = 64 << 10;

/// A blob, and the number of bytes received.
#[derive(Debug)]
pub(crate) struct BlobStream<'a> {
    pull: Arc<Pull>,
    blob: &'a Blob,
    to: PipeWriter,
    transfer: Arc<Transfer>,
    came: u64,
}

impl<'a> BlobStream<'a> {
    pub(crate) fn new(pull: Arc<Pull>, blob: &'a Blob, to: PipeWriter, transfer: Arc<Transfer>) -> Self {
        Self { pull, blob, to, transfer, came: 0 }
    }

    /// Sends the blob's bytes to the pipe in order; stops early when the pipe is closed.
    ///
    /// The endpoints are tried one after another, starting at index `start`.
    pub(crate) async fn run(mut self, start: usize) -> Result<(), Attempts> {
        let pull = self.pull.clone();
        let mut tried = Vec::new();
        for remote in pull.endpoints(start) {
            match self.request(remote).await {
                Ok(()) => {
                    pull.log_fallback(remote, tried);
                    return Ok(());
                }
                // The unpacker has stopped, and reports the reason itself.
                Err(_) if self.to.is_closed() => return Ok(()),
                Err(error) => tried.push(Attempt::new(remote, error)),
            }
        }
        Err(Attempts::new(tried))
    }

    /// Requests the rest of the blob from one endpoint, repeatedly while that makes progress.
    async fn request(&mut self, remote: &Repository) -> Result<(), FetchError> {
        let mut backoff = Backoff::new();
        loop {
            let before = self.came;
            let pieces = remote.blob(&self.blob.digest, self.came).await?;
            let error = match self.copy_body(pieces).await {
                // All bytes have arrived; the unpacker checks the digest.
                Err(_) if self.came >= self.blob.size => return Ok(()),
                Err(error) if error.is_transient() && !self.to.is_closed() => error,
                other => return other,
            };
            if self.came - before >= WORTH_IT {
                backoff = Backoff::new();
            }
            let Some(pause) = backoff.pause(None) else { return Err(error) };
            let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            tracing::debug!(blob = %self.blob.digest, came = self.came, %error, pause_ms, "a layer download was interrupted; resuming it");
            self.pull.counters.retried();
            tokio::time::sleep(pause).await;
        }
    }

    /// Copies the body to the pipe. The unpacker reports a blob that is too long.
    async fn copy_body(&mut self, mut pieces: Pieces) -> Result<(), FetchError> {
        let Blob { digest, size } = self.blob;
        while let Some(piece) = pieces.next().await? {
            let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
            if self.came == 0 && is_cheap_to_decode(&piece) {
                self.transfer.is_small();
            }
            self.transfer.came(length);
            self.came = self.came.saturating_add(length);
            self.pull.progress.came(length);
            if !self.to.send(&piece).await || self.came > *size {
                return Ok(());
            }
        }
        if self.came < *size { Err(short(digest, self.came)) } else { Ok(()) }
    }
}

fn short(blob: &Digest, came: u64) -> FetchError {
    FetchError::Short { blob: blob.clone(), came }
}

#[cfg(test)]
#[path = "../tests/resumable_download.rs"]
mod tests;
