//! Errors of requests to a registry.

use std::error::Error;
use std::time::{Duration, SystemTime};
use std::{fmt, io};

use model::error_chain::chain;
use reqwest::header::RETRY_AFTER;
use reqwest::{Response, StatusCode, Url};
use rustls::{AlertDescription, CertificateError};

use crate::digest::Digest;
use crate::registry::address::LocalAddress;
use crate::registry::repository::Repository;
use crate::registry::retry::retry_after;

/// URLs in messages are truncated to this length.
const SHOWN_MAX: usize = 256;

/// A registry request that failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The HTTP client could not be set up.
    #[error("setting up the registry client")]
    Client(#[source] Box<dyn Error + Send + Sync>),
    /// The request could not be sent, or the response was interrupted.
    #[error("requesting {url} from the registry")]
    Transfer {
        /// The URL.
        url: String,
        /// The error of the HTTP client.
        source: reqwest::Error,
    },
    /// One side rejects the certificate of the other.
    #[error("{url}: {why}")]
    Certificate {
        /// The URL.
        url: String,
        /// The problem and how to solve it.
        why: &'static str,
        /// The error of the TLS library.
        source: reqwest::Error,
    },
    /// The response, or its next part, did not arrive.
    #[error("downloading {url}: no progress for {} s", after.as_secs_f32())]
    Stalled {
        /// The URL.
        url: String,
        /// The time limit.
        after: Duration,
    },
    /// A document did not arrive completely in time.
    #[error("requesting {url}: the registry's response is incomplete after {} s", after.as_secs_f32())]
    Slow {
        /// The URL.
        url: String,
        /// The time limit.
        after: Duration,
    },
    /// The registry returned an error status.
    #[error("the registry returned {status} for {url}")]
    Status {
        /// The URL.
        url: String,
        /// The status.
        status: StatusCode,
        /// The pause that the registry requests.
        wait: Option<Duration>,
    },
    /// The registry requires other credentials, or any.
    #[error("the registry requires credentials for {url}, or rejected those that it received")]
    Unauthorized {
        /// The URL.
        url: String,
    },
    /// A challenge, token response or redirect that is invalid or not safe to follow.
    #[error("{url}: {why}")]
    Protocol {
        /// The URL.
        url: String,
        /// The reason.
        why: &'static str,
    },
    /// The download was aborted to free its place for other registries.
    #[error(
        "download from registry {registry} aborted at {rate} bytes/s, since layers of other registries are waiting"
    )]
    Overtaken {
        /// The registry.
        registry: String,
        /// The rate before the abort.
        rate: u64,
    },
    /// A response names a server at an address that only this node can reach.
    #[error(
        "pull refused: the {by} of {url} refers to this node, a link-local address or a metadata service; to allow it, add a section for that server under [registries]"
    )]
    LocalAddress {
        /// The registry's URL.
        url: String,
        /// The part of the response that names it.
        by: &'static str,
    },
    /// The response is larger than the limit.
    #[error("downloading {url}: the registry sent more than {limit} bytes")]
    TooLarge {
        /// The URL.
        url: String,
        /// The limit.
        limit: u64,
    },
    /// Content with another digest.
    #[error("downloading {url}: received content with digest {found}, expected {wanted}")]
    Digest {
        /// The URL.
        url: String,
        /// The requested digest.
        wanted: Digest,
        /// The digest of the received content.
        found: Digest,
    },
    /// Content of another size than in its descriptor.
    #[error("downloading {url}: received {found} bytes, expected {wanted}")]
    Size {
        /// The URL.
        url: String,
        /// The size in the manifest or index.
        wanted: u64,
        /// The received size.
        found: u64,
    },
    /// A blob is still incomplete after all retries.
    #[error("downloading layer {blob}: the registry ended the response after {came} bytes")]
    Short {
        /// The blob.
        blob: Digest,
        /// The number of received bytes.
        came: u64,
    },
}

impl model::ErrorClass for FetchError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Client(_) => model::ErrorKind::Internal,
            Self::Transfer { .. }
            | Self::Certificate { .. }
            | Self::Stalled { .. }
            | Self::Slow { .. }
            | Self::Overtaken { .. }
            | Self::Short { .. } => model::ErrorKind::Unavailable,
            Self::Status { status, .. } => match *status {
                StatusCode::NOT_FOUND => model::ErrorKind::NotFound,
                StatusCode::UNAUTHORIZED => model::ErrorKind::Unauthenticated,
                StatusCode::FORBIDDEN => model::ErrorKind::Denied,
                StatusCode::TOO_MANY_REQUESTS => model::ErrorKind::Unavailable,
                status if status.is_server_error() => model::ErrorKind::Unavailable,
                _ => model::ErrorKind::Internal,
            },
            Self::Unauthorized { .. } => model::ErrorKind::Unauthenticated,
            Self::LocalAddress { .. } => model::ErrorKind::Invalid,
            Self::Protocol { .. } | Self::Digest { .. } | Self::Size { .. } => model::ErrorKind::Invalid,
            Self::TooLarge { .. } => model::ErrorKind::Exhausted,
        }
    }
}

impl FetchError {
    /// Returns whether the same request may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            // When a connect times out, the kernel has already retried.
            Self::Transfer { source, .. } => !(source.is_connect() && source.is_timeout()),
            Self::Stalled { .. } | Self::Short { .. } => true,
            Self::Status { status, .. } => matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504),
            // Such a slow link does not become faster within seconds.
            Self::Slow { .. } | Self::Overtaken { .. } => false,
            Self::Client(_)
            | Self::Certificate { .. }
            | Self::Unauthorized { .. }
            | Self::LocalAddress { .. }
            | Self::Protocol { .. }
            | Self::TooLarge { .. }
            | Self::Digest { .. }
            | Self::Size { .. } => false,
        }
    }

    /// Returns the pause that the server requests.
    pub(crate) fn wait(&self) -> Option<Duration> {
        match self {
            Self::Status { wait, .. } => *wait,
            _ => None,
        }
    }

    pub(crate) fn transfer(url: &Url, source: reqwest::Error) -> Self {
        let source = source.without_url();
        if is_local_address(&source) {
            return Self::LocalAddress { url: shown(url), by: "host name" };
        }
        match certificate_problem(&source) {
            Some(why) => Self::Certificate { url: shown(url), why, source },
            None => Self::Transfer { url: shown(url), source },
        }
    }

    pub(crate) fn status(url: &Url, response: &Response) -> Self {
        let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let wait = wait.and_then(|value| retry_after(value, SystemTime::now()));
        Self::Status { url: shown(url), status: response.status(), wait }
    }
}

/// Returns the part of a URL that messages may contain: redirect targets have secrets in their
/// query.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    let mut text: String = url.into();
    text.truncate(SHOWN_MAX); // a URL is ASCII
    text
}

/// Returns the part of a URL from a response that messages may contain: scheme, host and port.
pub(crate) fn server_of(url: &Url) -> Url {
    let mut server = url.clone();
    server.set_path("");
    server.set_query(None);
    server.set_fragment(None);
    server
}

/// Returns whether the resolver refused the server's addresses.
fn is_local_address(error: &(dyn Error + 'static)) -> bool {
    error.is::<LocalAddress>() || error.source().is_some_and(is_local_address)
}

fn certificate_problem(error: &(dyn Error + 'static)) -> Option<&'static str> {
    match tls_error(error)? {
        rustls::Error::InvalidCertificate(problem) => Some(match problem {
            // The second is for another CA of the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "server certificate is signed by an unknown CA; \
                 to trust it, add its CA to `ca` of this registry"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "server certificate is for another host name"
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                "server certificate is expired or not yet valid; check the clock"
            }
            _ => "invalid server certificate",
        }),
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::HandshakeFailure,
        ) => Some(
            "client certificate missing or rejected; \
             see `client_cert` and `client_key` of this registry",
        ),
        _ => None,
    }
}

/// Finds the TLS library's own error in the chain.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    // Its `source` is that of the wrapped error, not the wrapped error.
    let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    held.and_then(|held| tls_error(held)).or_else(|| tls_error(error.source()?))
}

/// The error of one endpoint.
#[derive(Debug)]
pub(crate) struct Attempt {
    endpoint: String,
    /// It is the registry itself, not a mirror.
    own: bool,
    error: FetchError,
}

impl Attempt {
    pub(crate) fn new(remote: &Repository, error: FetchError) -> Self {
        Self { endpoint: remote.name(), own: remote.is_own(), error }
    }
}

/// The errors of all endpoints that were tried, in order.
#[derive(Debug)]
pub struct Attempts(Vec<Attempt>);

impl model::ErrorClass for Attempts {
    /// Returns the class of this error: that of the registry itself, otherwise of an endpoint that
    /// may succeed later.
    fn kind(&self) -> model::ErrorKind {
        self.decisive().map_or(model::ErrorKind::Internal, FetchError::kind)
    }
}

impl Attempts {
    pub(crate) fn new(tries: Vec<Attempt>) -> Self {
        Self(tries)
    }

    /// Returns the error that decides about the class of all.
    pub(crate) fn decisive(&self) -> Option<&FetchError> {
        use model::ErrorClass as _;
        let own = self.0.iter().find(|one| one.own);
        let later = || self.0.iter().find(|one| one.error.kind() == model::ErrorKind::Unavailable);
        own.or_else(later).or(self.0.last()).map(|one| &one.error)
    }

    /// Returns the errors in the order of the attempts.
    pub fn errors(&self) -> impl Iterator<Item = &FetchError> {
        self.0.iter().map(|one| &one.error)
    }
}

impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [Attempt { error, .. }] = &self.0[..] {
            return write!(f, "{error}");
        }
        for (at, Attempt { endpoint, error, .. }) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{endpoint} → {}", chain(error))?;
        }
        Ok(())
    }
}

impl Error for Attempts {
    /// Several errors are all in the text; only a single one has a source to follow.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0[..] {
            [Attempt { error, .. }] => error.source(),
            _ => None,
        }
    }
}
