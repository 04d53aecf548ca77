//! The body of a registry's answer, read as long as it keeps coming.

use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::{Response, Url};

use crate::registry::fetch_error::{FetchError, shown};

/// What has to come within the time given, and again within the same time after that: a server that sends a little now
/// and then would hold a place among the downloads for ever. The slowest line that is of use brings far more.
const PROGRESS: usize = 64 << 10;

/// An answer on its way.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    response: Response,
    url: Url,
    stall: Duration,
    /// What is left of the time given, of which only waiting for the server takes away.
    left: Duration,
    /// What came within it.
    came: usize,
}

impl ResponseBody {
    /// An answer that has to bring something every `stall`.
    pub(crate) fn new(response: Response, url: Url, stall: Duration) -> Self {
        Self { response, url, stall, left: stall, came: 0 }
    }

    /// The next piece, None at the end.
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

    /// All of it, if it is no more than `cap` bytes and comes in twice the time given for a part.
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

/// A blob on its way, from the byte asked for on.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) answer: ResponseBody,
    /// What the server sends again although it was not asked for.
    pub(crate) skip: u64,
}

impl Pieces {
    /// The next piece, None at the end.
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
