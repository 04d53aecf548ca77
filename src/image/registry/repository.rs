//! A repository at one endpoint, over HTTP: manifests and blobs, with size limits.
//!
//! Redirects are followed in this module, since they could leak secrets: the `Authorization` header
//! is sent only to the endpoint's own origin, and only the endpoint itself may request it. Token
//! servers are an exception required by the protocol: the registry names one, and it receives the
//! credentials in exchange for a token. Client certificates depend on the target host, so they need
//! no such rule.

use std::sync::Arc;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RANGE, WWW_AUTHENTICATE};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use sync::Mutex;

use crate::digest::Digest;
use crate::manifest::{self, Descriptor};
use crate::registry::address::names_local;
use crate::registry::auth::{Challenge, TokenAnswer, basic, refresh_form, token_url};
use crate::registry::body::{Pieces, ResponseBody};
use crate::registry::endpoint::{Credentials, Source};
use crate::registry::fetch_error::{FetchError, server_of, shown};
use crate::registry::http::Http;
use crate::registry::retry::Backoff;

const REDIRECTS_MAX: usize = 5;
const TOKEN_MAX: u64 = 1 << 20;

/// A repository at one endpoint.
#[derive(Debug)]
pub(crate) struct Repository {
    http: Arc<Http>,
    source: Source,
    repository: String,
    /// The last `Authorization` value that worked.
    authorization: Mutex<Option<HeaderValue>>,
}

impl Repository {
    pub(crate) fn new(http: Arc<Http>, source: Source, repository: &str) -> Self {
        Self { http, source, repository: repository.to_owned(), authorization: Mutex::new(None) }
    }

    /// Returns the endpoint, for messages.
    pub(crate) fn name(&self) -> String {
        shown(&self.source.url)
    }

    /// Returns whether it is the registry itself, not a mirror.
    pub(crate) fn is_own(&self) -> bool {
        self.source.mirrors.is_none()
    }

    /// Returns the digest that a tag or digest refers to, if the registry reports it.
    pub(crate) async fn resolve(&self, pick: &str) -> Result<Option<Digest>, FetchError> {
        let url = self.url("manifests", pick)?;
        let headers = accept_manifests();
        let response = match self.with_retries(|| self.send_authorized(Method::HEAD, url.clone(), &headers)).await {
            Ok(response) => response,
            // Some registries do not support HEAD; the manifest itself is then needed.
            Err(FetchError::Status { status: StatusCode::METHOD_NOT_ALLOWED, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let header = response.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        Ok(header.and_then(|text| text.parse().ok()))
    }

    /// Returns the document of a tag or digest, and its digest, which equals `pick` if that is a
    /// digest.
    pub(crate) async fn manifest(&self, pick: &str, cap: u64) -> Result<(Digest, Vec<u8>), FetchError> {
        let url = self.url("manifests", pick)?;
        let content = self.whole(&url, &accept_manifests(), cap).await?;
        match pick.parse::<Digest>() {
            Ok(wanted) => Ok((wanted.clone(), verified(&url, &wanted, content)?)),
            Err(_) => Ok((Digest::of(&content), content)),
        }
    }

    /// Returns the manifest of an index entry.
    pub(crate) async fn entry(&self, entry: &Descriptor, cap: u64) -> Result<Vec<u8>, FetchError> {
        let url = self.url("manifests", entry.digest.as_str())?;
        self.described(&url, &accept_manifests(), entry, cap).await
    }

    /// Returns a small blob.
    pub(crate) async fn document(&self, blob: &Descriptor, cap: u64) -> Result<Vec<u8>, FetchError> {
        let url = self.url("blobs", blob.digest.as_str())?;
        self.described(&url, &HeaderMap::new(), blob, cap).await
    }

    /// Checks whether these credentials grant access to a blob.
    pub(crate) async fn has_blob(&self, digest: &Digest) -> Result<(), FetchError> {
        let url = self.url("blobs", digest.as_str())?;
        let headers = HeaderMap::new();
        match self.with_retries(|| self.send_authorized(Method::HEAD, url.clone(), &headers)).await {
            Ok(_) => return Ok(()),
            Err(error @ FetchError::Status { status: StatusCode::NOT_FOUND, .. }) => return Err(error),
            Err(error @ FetchError::Unauthorized { .. }) => return Err(error),
            // Some registries do not support HEAD for blobs, or redirect to a server that supports
            // only GET.
            Err(error) => {
                tracing::debug!(%error, "the registry refused a HEAD request for a layer; requesting its first byte instead")
            }
        }
        let headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_static("bytes=0-0"))]);
        self.send_authorized(Method::GET, url, &headers).await.map(drop)
    }

    /// Returns a blob from byte `offset` on, in pieces.
    pub(crate) async fn blob(&self, digest: &Digest, offset: u64) -> Result<Pieces, FetchError> {
        let url = self.url("blobs", digest.as_str())?;
        let mut headers = HeaderMap::new();
        if offset > 0 {
            let range = HeaderValue::try_from(format!("bytes={offset}-"));
            headers.insert(RANGE, range.map_err(|error| FetchError::Client(error.into()))?);
        }
        let response = self.with_retries(|| self.send_authorized(Method::GET, url.clone(), &headers)).await?;
        // A server that ignores the range sends the whole blob.
        let skip = match response.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&response, offset) => 0,
            StatusCode::PARTIAL_CONTENT => {
                return Err(FetchError::Protocol {
                    url: shown(&url),
                    why: "response has another range than requested",
                });
            }
            _ => offset,
        };
        Ok(Pieces { answer: ResponseBody::new(response, url, self.http.stall), skip })
    }

    /// Returns the content, after checking digest and size of `descriptor`.
    async fn described(
        &self,
        url: &Url,
        headers: &HeaderMap,
        descriptor: &Descriptor,
        cap: u64,
    ) -> Result<Vec<u8>, FetchError> {
        let Descriptor { digest, size: wanted, .. } = descriptor;
        if *wanted > cap {
            return Err(FetchError::TooLarge { url: shown(url), limit: cap });
        }
        let content = verified(url, digest, self.whole(url, headers, *wanted).await?)?;
        match u64::try_from(content.len()).unwrap_or(u64::MAX) {
            found if found == *wanted => Ok(content),
            found => Err(FetchError::Size { url: shown(url), wanted: *wanted, found }),
        }
    }

    /// Returns the whole response of a GET.
    async fn whole(&self, url: &Url, headers: &HeaderMap, cap: u64) -> Result<Vec<u8>, FetchError> {
        self.with_retries(|| async {
            let response = self.send_authorized(Method::GET, url.clone(), headers).await?;
            ResponseBody::new(response, url.clone(), self.http.stall).whole(cap).await
        })
        .await
    }

    /// Repeats `work`, with pauses, while its errors are transient.
    async fn with_retries<T, F>(&self, work: impl Fn() -> F) -> Result<T, FetchError>
    where
        F: Future<Output = Result<T, FetchError>>,
    {
        let mut backoff = Backoff::new();
        loop {
            let error = match work().await {
                Err(error) if error.is_transient() => error,
                other => return other,
            };
            let Some(pause) = backoff.pause(error.wait()) else { return Err(error) };
            let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            tracing::debug!(%error, pause_ms, "a request to the registry failed; will retry");
            self.http.counters.retried();
            tokio::time::sleep(pause).await;
        }
    }

    fn url(&self, kind: &str, what: &str) -> Result<Url, FetchError> {
        let path = format!("v2/{}/{kind}/{what}", self.repository);
        let bad = || FetchError::Protocol { url: self.name(), why: "cannot build a URL for this image name" };
        let mut url = self.source.url.join(&path).map_err(|_| bad())?;
        if let Some(registry) = &self.source.mirrors {
            url.query_pairs_mut().append_pair("ns", registry);
        }
        Ok(url)
    }

    /// Returns the client for `url`; if it is not the endpoint's own, the part `by` of a response
    /// has named it.
    fn client(&self, url: &Url, by: &'static str) -> Result<Client, FetchError> {
        let is_free = self.is_ours(url) || self.http.registries.has(url);
        if !is_free && names_local(url) {
            return Err(FetchError::LocalAddress { url: self.name(), by });
        }
        self.http.client(url, !is_free).map_err(FetchError::Client)
    }

    fn is_ours(&self, url: &Url) -> bool {
        url.origin() == self.source.url.origin()
    }

    /// Returns the URL for messages.
    fn reported(&self, url: &Url) -> Url {
        if self.is_ours(url) { url.clone() } else { server_of(url) }
    }

    /// Sends a request; the complete head of the response must arrive within the stall time.
    async fn send(&self, url: &Url, request: RequestBuilder) -> Result<Response, FetchError> {
        match tokio::time::timeout(self.http.stall, request.send()).await {
            Ok(answer) => answer.map_err(|source| FetchError::transfer(url, source)),
            Err(_) => Err(FetchError::Stalled { url: shown(url), after: self.http.stall }),
        }
    }

    /// Sends a request, answers one challenge, follows redirects; returns an error for any status
    /// but success.
    async fn send_authorized(&self, method: Method, start: Url, headers: &HeaderMap) -> Result<Response, FetchError> {
        let mut url = start.clone();
        let mut redirects = 0;
        let mut challenged = false;
        loop {
            let (ours, reported) = (self.is_ours(&url), self.reported(&url));
            let mut request =
                self.client(&url, "redirect")?.request(method.clone(), url.clone()).headers(headers.clone());
            let authorization = self.authorization.lock().clone();
            if let Some(value) = authorization.filter(|_| ours) {
                request = request.header(AUTHORIZATION, value);
            }
            let response = self.send(&reported, request).await?;
            let status = response.status();
            if status.is_success() {
                return Ok(response);
            }
            if status.is_redirection() {
                redirects += 1;
                url = next_hop(&url, &reported, &response, redirects)?;
            } else if status == StatusCode::UNAUTHORIZED && ours {
                if challenged {
                    return Err(FetchError::Unauthorized { url: shown(&url) });
                }
                challenged = true;
                self.authorize(&url, response.headers()).await?;
                url = start.clone();
                redirects = 0;
            } else {
                return Err(FetchError::status(&reported, &response));
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
        *self.authorization.lock() = Some(value);
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
        let url = token_url(realm, service, &self.repository).ok_or_else(|| protocol("invalid token realm"))?;
        if asked_by.scheme() == "https" && url.scheme() != "https" {
            return Err(protocol("token realm without TLS"));
        }
        let client = self.client(&url, "token realm")?;
        let reported = self.reported(&url);
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
        let response = self.send(&reported, request).await?;
        match response.status() {
            status if status.is_success() => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
                return Err(FetchError::Unauthorized { url: shown(&reported) });
            }
            _ => return Err(FetchError::status(&reported, &response)),
        }
        let answer = ResponseBody::new(response, reported, self.http.stall).whole(TOKEN_MAX).await?;
        let answer: Option<TokenAnswer> = serde_json::from_slice(&answer).ok();
        answer.and_then(TokenAnswer::token).ok_or_else(|| protocol("token server sent no token"))
    }
}

fn accept_manifests() -> HeaderMap {
    HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(manifest::ACCEPT))])
}

fn verified(url: &Url, wanted: &Digest, content: Vec<u8>) -> Result<Vec<u8>, FetchError> {
    if wanted.matches(&content) {
        return Ok(content);
    }
    Err(FetchError::Digest { url: shown(url), wanted: wanted.clone(), found: Digest::of(&content) })
}

fn next_hop(url: &Url, reported: &Url, response: &Response, redirects: usize) -> Result<Url, FetchError> {
    let refuse = |why| Err(FetchError::Protocol { url: shown(reported), why });
    if redirects > REDIRECTS_MAX {
        return refuse("too many redirects");
    }
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let Some(next) = location.and_then(|location| url.join(location).ok()) else {
        return refuse("redirect without a valid Location header");
    };
    // The HTTP client would turn them into an `Authorization` header.
    if !next.username().is_empty() || next.password().is_some() {
        return refuse("redirect URL contains credentials");
    }
    match (url.scheme(), next.scheme()) {
        ("https", "https") | ("http", "http" | "https") => Ok(next),
        _ => refuse("redirect to a less secure scheme"),
    }
}

fn starts_at(response: &Response, offset: u64) -> bool {
    let range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {offset}-")))
}

#[cfg(test)]
#[path = "tests/repository.rs"]
mod tests;
