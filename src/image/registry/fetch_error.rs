//! What can go wrong with a request to a registry.

use std::error::Error;
use std::time::{Duration, SystemTime};
use std::{fmt, io};

use reqwest::header::RETRY_AFTER;
use reqwest::{Response, StatusCode, Url};
use rustls::{AlertDescription, CertificateError};

use crate::digest::Digest;
use crate::registry::address::LocalAddress;
use crate::registry::repository::Repository;
use crate::registry::retry::retry_after;

/// A URL is repeated in messages up to here.
const SHOWN_MAX: usize = 256;

/// A registry request that failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The HTTP client could not be set up.
    #[error("setting up the registry client")]
    Client(#[source] Box<dyn Error + Send + Sync>),
    /// The request could not be sent, or its answer broke off.
    #[error("asking {url}")]
    Transfer {
        /// Where.
        url: String,
        /// What happened.
        source: reqwest::Error,
    },
    /// One side does not take the other's certificate.
    #[error("{url}: {why}")]
    Certificate {
        /// Where.
        url: String,
        /// What is wrong and what can be done.
        why: &'static str,
        /// What the TLS library said.
        source: reqwest::Error,
    },
    /// The answer, or its next part, did not come.
    #[error("{url} sent next to nothing for {} s", after.as_secs_f32())]
    Stalled {
        /// Where.
        url: String,
        /// How long we waited.
        after: Duration,
    },
    /// A document kept coming, and did not end.
    #[error("{url} did not send all of it in {} s", after.as_secs_f32())]
    Slow {
        /// Where.
        url: String,
        /// How long we waited.
        after: Duration,
    },
    /// The registry said no.
    #[error("{url} answered {status}")]
    Status {
        /// Where.
        url: String,
        /// What it said.
        status: StatusCode,
        /// How long it wants to be left alone.
        wait: Option<Duration>,
    },
    /// The registry wants other credentials, or any.
    #[error("{url} does not accept the credentials given, or needs some")]
    Unauthorized {
        /// Where.
        url: String,
    },
    /// A challenge, token answer or redirect that makes no sense or is not safe to follow.
    #[error("{url}: {why}")]
    Protocol {
        /// Where.
        url: String,
        /// What is wrong.
        why: &'static str,
    },
    /// It was broken off so that other registries have their turn.
    #[error("{registry} sent {rate} bytes a second, too little while layers of other registries wait")]
    Overtaken {
        /// The registry.
        registry: String,
        /// The rate before that.
        rate: u64,
    },
    /// An answer names a server at an address that only this node can reach.
    #[error(
        "{url}: its {by} names a server on this node, on its link or of a metadata service; if that is meant, give \
         the server a section of its own below [registries]"
    )]
    LocalAddress {
        /// The registry's URL.
        url: String,
        /// The part of the answer that named it.
        by: &'static str,
    },
    /// More than we are willing to keep in memory.
    #[error("{url} sent more than {limit} bytes")]
    TooLarge {
        /// Where.
        url: String,
        /// The bound.
        limit: u64,
    },
    /// Content that is not what its digest says.
    #[error("{url} sent {found} for {wanted}")]
    Digest {
        /// Where.
        url: String,
        /// What was asked for.
        wanted: Digest,
        /// What came.
        found: Digest,
    },
    /// Content that is shorter than what points to it says.
    #[error("{url} sent {found} bytes of {wanted}")]
    Size {
        /// Where.
        url: String,
        /// The size in the manifest or index.
        wanted: u64,
        /// The size of what came.
        found: u64,
    },
    /// A blob that ended early, however often we asked.
    #[error("blob {blob} broke off after {came} bytes")]
    Short {
        /// The blob.
        blob: Digest,
        /// How far we got.
        came: u64,
    },
}

impl FetchError {
    /// The class of this error.
    pub fn kind(&self) -> model::ErrorKind {
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

    /// Whether the same request may have another answer in a moment.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            // A host that let us wait for a connection has been asked more than once already, by the kernel.
            Self::Transfer { source, .. } => !(source.is_connect() && source.is_timeout()),
            Self::Stalled { .. } | Self::Short { .. } => true,
            Self::Status { status, .. } => matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504),
            // A line so slow does not get better in a moment.
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

    /// How long the server asked to be left alone.
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

/// What a message may say about a URL: redirect targets carry secrets in their query.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    let mut text: String = url.into();
    text.truncate(SHOWN_MAX); // a URL is ASCII
    text
}

/// The part of a URL that a message may repeat where an answer has named it: scheme, host and port.
pub(crate) fn server_of(url: &Url) -> Url {
    let mut server = url.clone();
    server.set_path("");
    server.set_query(None);
    server.set_fragment(None);
    server
}

/// Whether the resolver refused the server's addresses.
fn is_local_address(error: &(dyn Error + 'static)) -> bool {
    error.is::<LocalAddress>() || error.source().is_some_and(is_local_address)
}

fn certificate_problem(error: &(dyn Error + 'static)) -> Option<&'static str> {
    match tls_error(error)? {
        rustls::Error::InvalidCertificate(problem) => Some(match problem {
            // The second: by another CA of the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is signed by no CA that is known here; \
                 if it is to be trusted, name its CA in `ca` of this registry"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for another host name"
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => "its certificate is out of date, or a clock is wrong",
            _ => "its certificate is not a good one",
        }),
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::HandshakeFailure,
        ) => Some(
            "it wants a client certificate, or another one; \
             see `client_cert` and `client_key` of this registry",
        ),
        _ => None,
    }
}

/// The TLS library's own error, wherever it is wrapped in.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    // Its source is the source of what it holds, not what it holds.
    let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    held.and_then(|held| tls_error(held)).or_else(|| tls_error(error.source()?))
}

/// What one endpoint said.
#[derive(Debug)]
pub(crate) struct Attempt {
    endpoint: String,
    /// It is the registry itself.
    own: bool,
    error: FetchError,
}

impl Attempt {
    pub(crate) fn new(remote: &Repository, error: FetchError) -> Self {
        Self { endpoint: remote.name(), own: remote.is_own(), error }
    }
}

/// What every endpoint said that was asked for something, in order.
#[derive(Debug)]
pub struct Attempts(Vec<Attempt>);

impl Attempts {
    pub(crate) fn new(tries: Vec<Attempt>) -> Self {
        Self(tries)
    }

    /// The errors in the order of the tries.
    pub fn errors(&self) -> impl Iterator<Item = &FetchError> {
        self.0.iter().map(|one| &one.error)
    }

    /// The class of this error: the registry itself knows best, then whoever may know better later.
    pub fn kind(&self) -> model::ErrorKind {
        let own = self.0.iter().find(|one| one.own);
        let later = || self.0.iter().find(|one| one.error.kind() == model::ErrorKind::Unavailable);
        let decisive = own.or_else(later).or(self.0.last());
        decisive.map_or(model::ErrorKind::Internal, |one| one.error.kind())
    }
}

impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [Attempt { error, .. }] = &self.0[..] {
            return write!(f, "{error}");
        }
        for (at, Attempt { endpoint, error, .. }) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{endpoint} → {}", error_chain(error))?;
        }
        Ok(())
    }
}

impl Error for Attempts {
    /// Several errors are told in full by the text; only a single one has one story to follow.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0[..] {
            [Attempt { error, .. }] => error.source(),
            _ => None,
        }
    }
}

/// An error and all that led to it, on one line.
pub(crate) fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}
