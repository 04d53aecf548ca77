//! Registry credentials from a file in docker's config.json format.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::reference::{HUB, is_path, is_registry};
use crate::registry::endpoint::Credentials;

const FILE_MAX: usize = 1 << 20;

/// Credentials by registry, or by registry and path prefix. Never printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistryCredentials(BTreeMap<String, Credentials>);

/// A file in another format than `docker login` writes. Does not reveal secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidCredentialsFile(String);

/// The fields that crisp reads; other fields are for other programs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    auths: Option<BTreeMap<String, Option<Entry>>>,
    #[serde(default)]
    creds_store: Option<String>,
    #[serde(default)]
    cred_helpers: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl RegistryCredentials {
    /// Parses docker's config.json: its `auths`, by host, by URL, or by host and path prefix.
    ///
    /// Entries without credentials are skipped. A file with a `credsStore` or `credHelpers` is
    /// refused: crisp runs no such programs, and pulls would silently have no credentials.
    pub fn parse(json: &[u8]) -> Result<Self, InvalidCredentialsFile> {
        let bad = |why: &str| Err(InvalidCredentialsFile(why.to_owned()));
        if json.len() > FILE_MAX {
            return bad("is larger than 1 MiB");
        }
        let file: File = match serde_json::from_slice(json) {
            Ok(file) => file,
            // The message of the parser may quote a value.
            Err(error) => {
                let place = format!("line {} column {}", error.line(), error.column());
                return Err(InvalidCredentialsFile(format!("is not in the format of docker login: error at {place}")));
            }
        };
        if file.creds_store.is_some_and(|name| !name.is_empty()) || file.cred_helpers.is_some_and(|all| !all.is_empty())
        {
            return bad(
                "keeps credentials in a helper program (credsStore or credHelpers), which crisp does not run: \
                        put them into auths",
            );
        }
        let Some(auths) = file.auths else { return bad("has no auths") };
        let mut all = BTreeMap::new();
        for (key, entry) in auths {
            let Some(place) = normalised(&key) else {
                return Err(InvalidCredentialsFile(format!("auths: {:?} is not a registry", shown(&key))));
            };
            let read = entry.unwrap_or_default().credentials();
            let Some(credentials) =
                read.map_err(|why| InvalidCredentialsFile(format!("auths: {:?}: {why}", shown(&key))))?
            else {
                continue;
            };
            match all.insert(place, credentials.clone()) {
                Some(other) if other != credentials => {
                    return Err(InvalidCredentialsFile(format!(
                        "auths: {:?} appears twice in different spellings",
                        shown(&key)
                    )));
                }
                _ => {}
            }
        }
        Ok(Self(all))
    }

    /// Returns the credentials for a repository: those for the longest matching path prefix, at
    /// least the registry.
    pub fn find(&self, registry: &str, path: &str) -> Option<&Credentials> {
        let mut place = format!("{}/{path}", registry.to_ascii_lowercase());
        loop {
            if let Some(credentials) = self.0.get(&place) {
                return Some(credentials);
            }
            place.truncate(place.rfind('/')?);
        }
    }
}

impl Entry {
    fn credentials(self) -> Result<Option<Credentials>, &'static str> {
        let filled = |value: Option<String>| value.filter(|value| !value.is_empty());
        if let Some(token) = filled(self.registrytoken) {
            return Ok(Some(Credentials::RegistryToken(token)));
        }
        if let Some(token) = filled(self.identitytoken) {
            return Ok(Some(Credentials::IdentityToken(token)));
        }
        if let Some(auth) = filled(self.auth) {
            let read = Credentials::from_docker_auth(&auth).ok_or("auth is not base64 of username:password")?;
            return Ok(Some(read));
        }
        match (filled(self.username), filled(self.password)) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err("password without username"),
            (Some(username), password) => {
                Ok(Some(Credentials::Basic { username, password: password.unwrap_or_default() }))
            }
        }
    }
}

/// Normalises a key to `host[:port][/path]`; accepts every form that docker has used.
fn normalised(key: &str) -> Option<String> {
    let (key, is_url) = match key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")) {
        Some(rest) => (rest, true),
        None => (key, false),
    };
    let key = key.trim_end_matches('/');
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let host = host.to_ascii_lowercase();
    if !is_registry(&host) || !(path.is_empty() || is_path(path)) {
        return None;
    }
    let host = match host.as_str() {
        "index.docker.io" | "registry-1.docker.io" => HUB,
        other => other,
    };
    // The version of the registry API is not part of an image's name.
    let path = if is_url && matches!(path, "v1" | "v2") { "" } else { path };
    Some(if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") })
}

fn shown(key: &str) -> String {
    key.chars().take(128).collect()
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parse(value: &serde_json::Value) -> Result<RegistryCredentials, InvalidCredentialsFile> {
        RegistryCredentials::parse(value.to_string().as_bytes())
    }

    fn basic(username: &str) -> Credentials {
        Credentials::Basic { username: username.into(), password: "hunter2".into() }
    }

    fn entry(username: &str) -> serde_json::Value {
        json!({"auth": STANDARD.encode(format!("{username}:hunter2"))})
    }

    #[test]
    fn every_spelling_of_a_registry_is_found() {
        let spellings =
            ["a.b:5000", "https://a.b:5000", "http://A.B:5000/", "https://a.b:5000/v1/", "https://a.b:5000/v2"];
        for spelling in spellings {
            let logins = parse(&json!({"auths": {spelling: entry("me")}})).unwrap();
            assert_eq!(logins.find("a.b:5000", "x/y"), Some(&basic("me")), "{spelling}");
            assert_eq!(logins.find("a.b", "x/y"), None, "{spelling}");
            assert_eq!(logins.find("a.b:50000", "x"), None, "{spelling}");
        }
        for hub in ["https://index.docker.io/v1/", "docker.io", "index.docker.io", "registry-1.docker.io"] {
            let logins = parse(&json!({"auths": {hub: entry("me")}})).unwrap();
            assert_eq!(logins.find("docker.io", "library/busybox"), Some(&basic("me")), "{hub}");
        }
    }

    #[test]
    fn the_longest_path_prefix_of_whole_components_wins() {
        let auths = json!({"a.b": entry("all"), "a.b/team": entry("team"), "a.b/team/app": entry("app")});
        let logins = parse(&json!({"auths": auths})).unwrap();
        let found = |path: &str| logins.find("a.b", path).cloned();
        assert_eq!(found("x"), Some(basic("all")));
        assert_eq!(found("teams"), Some(basic("all")));
        assert_eq!(found("team"), Some(basic("team")));
        assert_eq!(found("team/ap"), Some(basic("team")));
        assert_eq!(found("team/app"), Some(basic("app")));
        assert_eq!(found("team/app/deep"), Some(basic("app")));
    }

    #[test]
    fn all_kinds_of_credentials_are_parsed_and_empty_entries_are_skipped() {
        let logins = parse(&json!({"auths": {
            "pair.x": {"username": "me", "password": "hunter2"},
            "identity.x": {"auth": STANDARD.encode("<token>:"), "identitytoken": "I"},
            "registry.x": {"registrytoken": "R"},
            "null.x": null, "empty.x": {}, "blank.x": {"auth": "", "password": null, "email": "a@b"},
        }, "HttpHeaders": {"X": "y"}, "credsStore": "", "credHelpers": {}}))
        .unwrap();
        assert_eq!(logins.find("pair.x", "p"), Some(&basic("me")));
        assert_eq!(logins.find("identity.x", "p"), Some(&Credentials::IdentityToken("I".into())));
        assert_eq!(logins.find("registry.x", "p"), Some(&Credentials::RegistryToken("R".into())));
        assert_eq!(logins.0.len(), 3);
    }

    #[test]
    fn an_unsupported_file_is_refused_without_revealing_secrets() {
        let secret = "c2VjcmV0";
        for bad in [
            json!({}),
            json!([secret]),
            json!({"auths": [secret]}),
            json!({"auths": {"a.b": secret}}),
            json!({"auths": {"a.b": {"auth": secret}}}),
            json!({"auths": {"a.b": {"password": secret}}}),
            json!({"auths": {"*.a.b": {"auth": secret}}}),
            json!({"auths": {"a.b/../c": entry(secret)}}),
            json!({"auths": {"": entry(secret)}}),
            json!({"auths": {}, "credsStore": secret}),
            json!({"auths": {}, "credHelpers": {"a.b": secret}}),
            json!({"auths": {"a.b": entry("me"), "https://a.b": entry("you")}}),
        ] {
            let error = parse(&bad).unwrap_err();
            assert!(!format!("{error} {error:?}").contains(secret), "{error}");
        }
        assert_eq!(
            RegistryCredentials::parse(&vec![b' '; FILE_MAX + 1]).unwrap_err().to_string(),
            "is larger than 1 MiB"
        );
        let deep = "[".repeat(100_000);
        assert!(RegistryCredentials::parse(format!(r#"{{"x":{deep}"#).as_bytes()).is_err());
        let logins = parse(&json!({"auths": {"a.b": entry("me")}})).unwrap();
        assert!(!format!("{logins:?}").contains("hunter2"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_key_makes_the_parser_panic(key in ".*", registry in ".*", path in ".*") {
            if let Ok(logins) = parse(&json!({"auths": {key: entry("me")}})) {
                let _found = logins.find(&registry, &path);
            }
        }
    }
}
