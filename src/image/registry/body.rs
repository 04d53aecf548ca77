//! The body of a registry's response, read with a minimum rate.

use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::{Response, Url};

use crate::registry::fetch_error::{FetchError, shown};

/// Bytes that must arrive in each period of the stall time: a server that sends less would hold a
/// download place indefinitely. The slowest useful link is much faster.
const PROGRESS: usize = 64 << 10;

/// A response whose body is being read.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    response: Response,
    url: Url,
    stall: Duration,
    /// Time left in this period; only waiting for the server counts.
    left: Duration,
    /// Bytes received in this period.
    came: usize,
}

impl ResponseBody {
    /// Creates the body of a response that must make progress every `stall`.
    pub(crate) fn new(response: Response, url: Url, stall: Duration) -> Self {
        Self { response, url, stall, left: stall, came: 0 }
    }

    /// Returns the next piece, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        let asked = Instant::now();
        let Ok(piece) = tokio::time::timeout(self.left, self.response.chunk()).await else {
            return Err(FetchError::Stalled { url: shown(&self.url), after: self.stall });
        };
        let piece = piece.map_err(|source| FetchError::transfer(&self.url, source))?;
        self.left = self.left.saturating_sub(asked.elapsed());
        self.came = self.came.saturating_add(piece.as_ref().map_or(0, Bytes::len));
        if self.came >= PROGRESS {
            (self.left, self.came) = (self.stall, 0);
        }
        Ok(piece)
    }

    /// Returns the whole body if it has at most `cap` bytes and arrives within twice the stall
    /// time.
    pub(crate) async fn whole(self, cap: u64) -> Result<Vec<u8>, FetchError> {
        let (url, after) = (self.url.clone(), self.stall.saturating_mul(2));
        let slow = |_| FetchError::Slow { url: shown(&url), after };
        tokio::time::timeout(after, self.collect(cap)).await.map_err(slow)?
    }

    async fn collect(mut self, cap: u64) -> Result<Vec<u8>, FetchError> {
        let too_large = |url: &Url| Err(FetchError::TooLarge { url: shown(url), limit: cap });
        if self.response.content_length().is_some_and(|length| length > cap) {
            return too_large(&self.url);
        }
        let mut content = Vec::new();
        while let Some(piece) = self.next().await? {
            content.extend_from_slice(&piece);
            if u64::try_from(content.len()).map_or(true, |length| length > cap) {
                return too_large(&self.url);
            }
        }
        Ok(content)
    }
}

/// A blob that is being received, starting at the requested byte.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) answer: ResponseBody,
    /// Bytes that the server sends again although they were not requested.
    pub(crate) skip: u64,
}

impl Pieces {
    /// Returns the next piece, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            let Some(mut piece) = self.answer.next().await? else { return Ok(None) };
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(piece.len());
            self.skip -= u64::try_from(skipped).unwrap_or(0);
            let piece = piece.split_off(skipped);
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }
}
