//! Registry authentication: parses challenges and builds token requests.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Url;
use serde::Deserialize;

use crate::registry::endpoint::Credentials;

/// The credentials a registry requires, from its `WWW-Authenticate` headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

#[derive(Deserialize)]
pub(crate) struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl TokenAnswer {
    pub(crate) fn token(self) -> Option<String> {
        self.token.or(self.access_token).filter(|token| !token.is_empty())
    }
}

impl Challenge {
    /// Returns the first supported challenge; a bearer token is preferred over sending a password.
    pub(crate) fn read<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut basic = None;
        for (scheme, parameters) in headers.filter_map(split) {
            if scheme.eq_ignore_ascii_case("bearer") {
                let get = |wanted: &str| {
                    let found = parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
                    found.map(|(_, value)| value.clone())
                };
                if let Some(realm) = get("realm") {
                    return Some(Self::Bearer { realm, service: get("service") });
                }
            } else if scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Self::Basic);
            }
        }
        basic
    }
}

/// Splits `Scheme name="value", name=value`: one challenge per header, as registries send them.
fn split(header: &str) -> Option<(&str, Vec<(String, String)>)> {
    let header = header.trim();
    let (scheme, mut rest) = header.split_once(' ').unwrap_or((header, ""));
    if scheme.is_empty() {
        return None;
    }
    let mut parameters = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',', '\t']);
        if rest.is_empty() {
            return Some((scheme, parameters));
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        parameters.push((name.trim().to_owned(), value));
        rest = after;
    }
}

fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

/// Returns `Basic ...` for a user name and password.
pub(crate) fn basic(username: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{username}:{password}")))
}

impl Credentials {
    /// Parses the `auth` field of a docker config: base64 of `username:password`.
    pub fn from_docker_auth(auth: &str) -> Option<Self> {
        let decoded = STANDARD.decode(auth.trim_end_matches('\0').trim()).ok()?;
        let text = String::from_utf8(decoded).ok()?;
        let (username, password) = text.split_once(':')?;
        let password = password.trim_end_matches('\0').to_owned();
        Some(Self::Basic { username: username.to_owned(), password })
    }
}

/// Returns the URL for a token to read `repository`.
pub(crate) fn token_url(realm: &str, service: Option<&str>, repository: &str) -> Option<Url> {
    let mut url: Url = realm.parse().ok()?;
    let plain = url.username().is_empty() && url.password().is_none();
    if !plain || !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return None;
    }
    {
        let mut query = url.query_pairs_mut();
        if let Some(service) = service {
            query.append_pair("service", service);
        }
        query.append_pair("scope", &scope(repository));
    }
    Some(url)
}

pub(crate) fn scope(repository: &str) -> String {
    format!("repository:{repository}:pull")
}

/// Returns the request body that exchanges a refresh token for an access token.
pub(crate) fn refresh_form(token: &str, service: Option<&str>, repository: &str) -> String {
    let mut url = Url::parse("http://form/").ok();
    if let Some(url) = url.as_mut() {
        let mut query = url.query_pairs_mut();
        query.append_pair("grant_type", "refresh_token");
        query.append_pair("client_id", "crisp");
        query.append_pair("service", service.unwrap_or_default());
        query.append_pair("scope", &scope(repository));
        query.append_pair("refresh_token", token);
    }
    url.and_then(|url| url.query().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn challenges_are_parsed_in_every_spelling() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.into(), service: service.map(Into::into) })
        };
        let read = |headers: &[&str]| Challenge::read(headers.iter().copied());
        assert_eq!(
            read(&[r#"Bearer realm="https://a/t",service="s",scope="repository:x:pull,push""#]),
            bearer("https://a/t", Some("s"))
        );
        assert_eq!(read(&[r#"bearer Realm=https://a/t"#]), bearer("https://a/t", None));
        assert_eq!(read(&[r#"Bearer realm="a\"b""#]), bearer("a\"b", None));
        assert_eq!(read(&["Basic realm=x", r#"Bearer realm="https://a/t""#]), bearer("https://a/t", None));
        assert_eq!(read(&["Basic"]), Some(Challenge::Basic));
        for none in ["", "Negotiate", "Bearer", r#"Bearer realm="x"#, "Bearer realm"] {
            assert_eq!(read(&[none]), None, "{none}");
        }
    }

    #[test]
    fn docker_auth_is_parsed_as_user_and_password() {
        let auth = STANDARD.encode("me:pa:ss");
        let wanted = Credentials::Basic { username: "me".into(), password: "pa:ss".into() };
        assert_eq!(Credentials::from_docker_auth(&auth), Some(wanted));
        assert_eq!(Credentials::from_docker_auth("!"), None);
        assert_eq!(Credentials::from_docker_auth(&STANDARD.encode("nocolon")), None);
    }

    #[test]
    fn a_refresh_form_escapes_its_values() {
        let form = refresh_form("a&b=c", Some("s"), "x/y");
        assert!(form.contains("refresh_token=a%26b%3Dc"), "{form}");
        assert!(form.contains("scope=repository%3Ax%2Fy%3Apull"), "{form}");
    }

    proptest! {
        #[test]
        fn no_header_makes_the_reader_panic(header in ".*") {
            drop(Challenge::read([header.as_str()].into_iter()));
        }
    }
}
