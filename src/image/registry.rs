//! One repository at one endpoint, over HTTP: manifests and blobs, within bounds.
//!
//! Redirects are followed by hand, because that is where secrets leak: the `Authorization` header goes to the
//! endpoint's own origin and nowhere else, and only the endpoint itself may ask for it. Token servers are an exception
//! by design of the protocol: the registry names one, and it gets the credentials to trade them for a token.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RANGE, WWW_AUTHENTICATE};
use reqwest::{Method, Response, StatusCode, Url};

use crate::auth::{Challenge, TokenAnswer, basic, refresh_form, token_url};
use crate::digest::Digest;
use crate::endpoint::{Credentials, Source};
use crate::http::Http;
use crate::manifest;

const REDIRECTS_MAX: usize = 5;
const TOKEN_MAX: u64 = 1 << 20;

/// A registry request that failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The HTTP client could not be set up.
    #[error("setting up the registry client")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The request could not be sent, or its answer broke off.
    #[error("asking {url}")]
    Transfer {
        /// Where.
        url: String,
        /// What happened.
        source: reqwest::Error,
    },
    /// The registry said no.
    #[error("{url} answered {status}")]
    Status {
        /// Where.
        url: String,
        /// What it said.
        status: StatusCode,
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
    pub fn kind(&self) -> model::Kind {
        match self {
            Self::Client(_) => model::Kind::Internal,
            Self::Transfer { .. } | Self::Short { .. } => model::Kind::Unavailable,
            Self::Status { status, .. } => match *status {
                StatusCode::NOT_FOUND => model::Kind::NotFound,
                StatusCode::FORBIDDEN => model::Kind::Denied,
                StatusCode::TOO_MANY_REQUESTS => model::Kind::Unavailable,
                status if status.is_server_error() => model::Kind::Unavailable,
                _ => model::Kind::Internal,
            },
            Self::Unauthorized { .. } => model::Kind::Unauthenticated,
            Self::Protocol { .. } | Self::Digest { .. } => model::Kind::Invalid,
            Self::TooLarge { .. } => model::Kind::Exhausted,
        }
    }
}

/// One repository at one endpoint.
#[derive(Debug)]
pub(crate) struct Remote {
    http: Arc<Http>,
    source: Source,
    repository: String,
    /// The `Authorization` value that last worked.
    authorization: Mutex<Option<HeaderValue>>,
}

/// What an error may say about a URL: redirect targets carry secrets in their query.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

impl Remote {
    pub(crate) fn new(http: Arc<Http>, source: Source, repository: &str) -> Self {
        Self { http, source, repository: repository.to_owned(), authorization: Mutex::new(None) }
    }

    /// The endpoint, for messages.
    pub(crate) fn name(&self) -> String {
        shown(&self.source.url)
    }

    /// The digest a tag or digest stands for now, if the registry says so.
    pub(crate) async fn resolve(&self, pick: &str) -> Result<Option<Digest>, FetchError> {
        let url = self.url("manifests", pick)?;
        let response = match self.ask(Method::HEAD, url, &accept_manifests()).await {
            Ok(response) => response,
            // Some registries cannot: the manifest itself will tell.
            Err(FetchError::Status { status: StatusCode::METHOD_NOT_ALLOWED, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let header = response.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        Ok(header.and_then(|text| text.parse().ok()))
    }

    /// A manifest or index with its digest, which is the one asked for if `pick` is one.
    pub(crate) async fn manifest(&self, pick: &str, cap: u64) -> Result<(Digest, Vec<u8>), FetchError> {
        let url = self.url("manifests", pick)?;
        let response = self.ask(Method::GET, url.clone(), &accept_manifests()).await?;
        let content = whole(response, &url, cap).await?;
        match pick.parse::<Digest>() {
            Ok(wanted) if !wanted.matches(&content) => {
                Err(FetchError::Digest { url: shown(&url), wanted, found: Digest::of(&content) })
            }
            Ok(wanted) => Ok((wanted, content)),
            Err(_) => Ok((Digest::of(&content), content)),
        }
    }

    /// A small blob, whole.
    pub(crate) async fn document(&self, digest: &Digest, cap: u64) -> Result<Vec<u8>, FetchError> {
        let url = self.url("blobs", digest.as_str())?;
        let response = self.ask(Method::GET, url.clone(), &HeaderMap::new()).await?;
        let content = whole(response, &url, cap).await?;
        if digest.matches(&content) {
            Ok(content)
        } else {
            let (wanted, found) = (digest.clone(), Digest::of(&content));
            Err(FetchError::Digest { url: shown(&url), wanted, found })
        }
    }

    /// A blob from byte `offset` on, in pieces.
    pub(crate) async fn blob(&self, digest: &Digest, offset: u64) -> Result<Pieces, FetchError> {
        let url = self.url("blobs", digest.as_str())?;
        let mut headers = HeaderMap::new();
        if offset > 0 {
            let range = HeaderValue::try_from(format!("bytes={offset}-"));
            headers.insert(RANGE, range.map_err(|error| FetchError::Client(error.into()))?);
        }
        let response = self.ask(Method::GET, url.clone(), &headers).await?;
        // A server that ignores the range sends everything again.
        let skip = match response.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&response, offset) => 0,
            StatusCode::PARTIAL_CONTENT => {
                return Err(FetchError::Protocol { url: shown(&url), why: "sent another range than asked for" });
            }
            _ => offset,
        };
        Ok(Pieces { response, url: shown(&url), skip })
    }

    fn url(&self, kind: &str, what: &str) -> Result<Url, FetchError> {
        let path = format!("v2/{}/{kind}/{what}", self.repository);
        let bad = || FetchError::Protocol { url: self.name(), why: "cannot hold this image name" };
        let mut url = self.source.url.join(&path).map_err(|_| bad())?;
        if let Some(registry) = &self.source.mirrors {
            url.query_pairs_mut().append_pair("ns", registry);
        }
        Ok(url)
    }

    /// Sends a request, answers one challenge, follows redirects; any answer but success is an error.
    async fn ask(&self, method: Method, start: Url, headers: &HeaderMap) -> Result<Response, FetchError> {
        let mut url = start.clone();
        let mut redirects = 0;
        let mut challenged = false;
        loop {
            let ours = url.origin() == self.source.url.origin();
            let mut request = self
                .http
                .client(&url)
                .map_err(FetchError::Client)?
                .request(method.clone(), url.clone())
                .headers(headers.clone());
            let authorization = self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(value) = authorization.filter(|_| ours) {
                request = request.header(AUTHORIZATION, value);
            }
            let response = request.send().await.map_err(|source| transfer(&url, source))?;
            let status = response.status();
            if status.is_success() {
                return Ok(response);
            }
            if status.is_redirection() {
                redirects += 1;
                url = next_hop(&url, &response, redirects)?;
            } else if status == StatusCode::UNAUTHORIZED && ours {
                if challenged {
                    return Err(FetchError::Unauthorized { url: shown(&url) });
                }
                challenged = true;
                self.authorize(&url, response.headers()).await?;
                url = start.clone();
                redirects = 0;
            } else {
                return Err(FetchError::Status { url: shown(&url), status });
            }
        }
    }

    async fn authorize(&self, url: &Url, headers: &HeaderMap) -> Result<(), FetchError> {
        let unauthorized = || FetchError::Unauthorized { url: shown(url) };
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let challenge = Challenge::read(challenges).ok_or_else(unauthorized)?;
        let value = match (challenge, &self.source.credentials) {
            (Challenge::Basic, Some(Credentials::Basic { username, password })) => basic(username, password),
            (Challenge::Basic, _) => return Err(unauthorized()),
            (Challenge::Bearer { .. }, Some(Credentials::RegistryToken(token))) => format!("Bearer {token}"),
            (Challenge::Bearer { realm, service }, credentials) => {
                let token = self.token(url, &realm, service.as_deref(), credentials.as_ref()).await?;
                format!("Bearer {token}")
            }
        };
        let mut value = HeaderValue::try_from(value).map_err(|_| unauthorized())?;
        value.set_sensitive(true);
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        Ok(())
    }

    async fn token(
        &self,
        asked_by: &Url,
        realm: &str,
        service: Option<&str>,
        credentials: Option<&Credentials>,
    ) -> Result<String, FetchError> {
        let protocol = |why| FetchError::Protocol { url: shown(asked_by), why };
        let url = token_url(realm, service, &self.repository).ok_or_else(|| protocol("bad token realm"))?;
        if asked_by.scheme() == "https" && url.scheme() != "https" {
            return Err(protocol("token realm without TLS"));
        }
        let client = self.http.client(&url).map_err(FetchError::Client)?;
        let request = match credentials {
            Some(Credentials::Basic { username, password }) => {
                client.get(url.clone()).header(AUTHORIZATION, basic(username, password))
            }
            Some(Credentials::IdentityToken(token)) => {
                let mut place = url.clone();
                place.set_query(None);
                client.post(place).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(refresh_form(
                    token,
                    service,
                    &self.repository,
                ))
            }
            Some(Credentials::RegistryToken(_)) | None => client.get(url.clone()),
        };
        let response = request.send().await.map_err(|source| transfer(&url, source))?;
        match response.status() {
            status if status.is_success() => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
                return Err(FetchError::Unauthorized { url: shown(&url) });
            }
            status => return Err(FetchError::Status { url: shown(&url), status }),
        }
        let answer = whole(response, &url, TOKEN_MAX).await?;
        let answer: Option<TokenAnswer> = serde_json::from_slice(&answer).ok();
        answer.and_then(TokenAnswer::token).ok_or_else(|| protocol("token server sent no token"))
    }
}

fn accept_manifests() -> HeaderMap {
    HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(manifest::ACCEPT))])
}

fn transfer(url: &Url, source: reqwest::Error) -> FetchError {
    FetchError::Transfer { url: shown(url), source: source.without_url() }
}

fn next_hop(url: &Url, response: &Response, redirects: usize) -> Result<Url, FetchError> {
    let refuse = |why| Err(FetchError::Protocol { url: shown(url), why });
    if redirects > REDIRECTS_MAX {
        return refuse("too many redirects");
    }
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let Some(next) = location.and_then(|location| url.join(location).ok()) else {
        return refuse("redirect to nowhere");
    };
    match (url.scheme(), next.scheme()) {
        ("https", "https") | ("http", "http" | "https") => Ok(next),
        _ => refuse("redirect to a less safe scheme"),
    }
}

fn starts_at(response: &Response, offset: u64) -> bool {
    let range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {offset}-")))
}

async fn whole(mut response: Response, url: &Url, cap: u64) -> Result<Vec<u8>, FetchError> {
    let too_large = || FetchError::TooLarge { url: shown(url), limit: cap };
    if response.content_length().is_some_and(|length| length > cap) {
        return Err(too_large());
    }
    let mut content = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|source| transfer(url, source))? {
        content.extend_from_slice(&piece);
        if u64::try_from(content.len()).map_or(true, |length| length > cap) {
            return Err(too_large());
        }
    }
    Ok(content)
}

/// A blob on its way.
#[derive(Debug)]
pub(crate) struct Pieces {
    response: Response,
    url: String,
    skip: u64,
}

impl Pieces {
    /// The next piece, None at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            let piece = self
                .response
                .chunk()
                .await
                .map_err(|source| FetchError::Transfer { url: self.url.clone(), source: source.without_url() })?;
            let Some(mut piece) = piece else { return Ok(None) };
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(piece.len());
            self.skip -= u64::try_from(skipped).unwrap_or(0);
            let piece = piece.split_off(skipped);
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }
}
