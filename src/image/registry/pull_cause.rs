//! The causes of failed pulls, for metrics.

use model::{ErrorClass as _, ErrorKind};
use reqwest::StatusCode;

use super::fetch_error::FetchError;
use super::pull_error::PullError;

/// The cause of a failed pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PullCause {
    /// The registry does not have the image.
    NotFound,
    /// Credentials are missing, wrong or insufficient.
    Unauthorized,
    /// The registry limits the rate of requests.
    RateLimited,
    /// Another error status of the registry, or an invalid response.
    Registry,
    /// The registry could not be reached, or the connection broke.
    Network,
    /// A certificate was rejected, by either side.
    Tls,
    /// The registry was too slow.
    Timeout,
    /// The image is malformed, too large, not for this platform, or has another digest.
    Image,
    /// The disk is full.
    NoSpace,
    /// The settings do not allow it, or the name is not valid.
    Refused,
    /// The disk failed, or crisp itself.
    Internal,
    /// The client disconnected, or the daemon stopped.
    Abandoned,
}

impl PullCause {
    pub(crate) const ALL: [Self; 12] = [
        Self::NotFound,
        Self::Unauthorized,
        Self::RateLimited,
        Self::Registry,
        Self::Network,
        Self::Tls,
        Self::Timeout,
        Self::Image,
        Self::NoSpace,
        Self::Refused,
        Self::Internal,
        Self::Abandoned,
    ];

    /// Returns the word for it in metrics.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Unauthorized => "unauthorized",
            Self::RateLimited => "rate_limited",
            Self::Registry => "registry_error",
            Self::Network => "network",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Image => "invalid_image",
            Self::NoSpace => "no_space",
            Self::Refused => "refused",
            Self::Internal => "internal",
            Self::Abandoned => "abandoned",
        }
    }

    pub(crate) fn of(error: &PullError) -> Self {
        let disk = |kind| if kind == ErrorKind::Exhausted { Self::NoSpace } else { Self::Internal };
        match error {
            PullError::Endpoint(_) => Self::Refused,
            PullError::Fetch { source, .. } => source.decisive().map_or(Self::Internal, Self::of_fetch),
            PullError::Search { tried } => tried.last().map_or(Self::NotFound, Self::of),
            PullError::Manifest { .. } => Self::Image,
            PullError::Unpack { source, .. } => source.disk_kind().map_or(Self::Image, disk),
            PullError::Disk(source) => disk(source.kind()),
            PullError::Cut(_) => Self::Internal,
        }
    }

    fn of_fetch(error: &FetchError) -> Self {
        match error {
            FetchError::Client(_) => Self::Internal,
            FetchError::Transfer { .. } | FetchError::Short { .. } => Self::Network,
            FetchError::Certificate { .. } => Self::Tls,
            FetchError::Stalled { .. } | FetchError::Slow { .. } | FetchError::Overtaken { .. } => Self::Timeout,
            FetchError::Status { status, .. } => match *status {
                StatusCode::NOT_FOUND => Self::NotFound,
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Unauthorized,
                StatusCode::TOO_MANY_REQUESTS => Self::RateLimited,
                _ => Self::Registry,
            },
            FetchError::Unauthorized { .. } => Self::Unauthorized,
            FetchError::Protocol { .. } => Self::Registry,
            FetchError::LocalAddress { .. } => Self::Refused,
            FetchError::TooLarge { .. } | FetchError::Digest { .. } | FetchError::Size { .. } => Self::Image,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_cause_has_a_counter_and_a_word_of_its_own() {
        let words: std::collections::BTreeSet<_> = PullCause::ALL.iter().map(|cause| cause.as_str()).collect();
        assert_eq!(words.len(), PullCause::ALL.len());
        for (index, cause) in PullCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, index);
        }
    }

    #[test]
    fn the_status_of_the_registry_decides_about_the_cause() {
        let url = || "https://registry.example/v2/".to_owned();
        for (status, cause) in [
            (404, PullCause::NotFound),
            (401, PullCause::Unauthorized),
            (403, PullCause::Unauthorized),
            (429, PullCause::RateLimited),
            (400, PullCause::Registry),
            (503, PullCause::Registry),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(PullCause::of_fetch(&FetchError::Status { url: url(), status, wait: None }), cause);
        }
        let stalled = FetchError::Stalled { url: url(), after: Duration::from_secs(1) };
        assert_eq!(PullCause::of_fetch(&stalled), PullCause::Timeout);
        assert_eq!(PullCause::of(&PullError::Search { tried: Vec::new() }), PullCause::NotFound);
        assert_eq!(PullCause::of(&PullError::Cut("x".to_owned())), PullCause::Internal);
    }
}
