//! Registry endpoints: mirrors in order, schemes, and the defaults for hosts without configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use reqwest::Url;

use crate::reference::HUB;
use crate::registry::docker_config::RegistryCredentials;
use crate::registry::tls::Tls;

/// The API host of [`HUB`].
const HUB_API: &str = "registry-1.docker.io";

/// Credentials for a registry. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// User name and password.
    Basic {
        /// User name.
        username: String,
        /// Password.
        password: String,
    },
    /// A refresh token, exchanged for access tokens.
    IdentityToken(String),
    /// A bearer token, sent as it is.
    RegistryToken(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic { .. } => "Basic(hidden)",
            Self::IdentityToken(_) => "IdentityToken(hidden)",
            Self::RegistryToken(_) => "RegistryToken(hidden)",
        })
    }
}

/// Credentials of a pull, and the only registry that receives them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    /// As in [`crate::Reference::registry`].
    pub registry: String,
    /// Its credentials.
    pub credentials: Credentials,
}

/// A base URL that serves the registry API under `/v2/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    url: Url,
}

/// Text that is not a registry URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid registry endpoint {0:?}: expected http://HOST[:PORT][/PATH] or https://...")]
pub struct BadEndpoint(String);

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        // Text before an @ may contain a password.
        let shown = text.rsplit('@').next().unwrap_or_default();
        let bad = || BadEndpoint(shown.chars().filter(|c| !c.is_control()).take(256).collect());
        let mut url: Url = text.parse().map_err(|_| bad())?;
        let plain =
            url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
        if !plain || !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err(bad());
        }
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        Ok(Self { url })
    }
}

/// The configuration of one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registry {
    /// Tried in order before the registry itself.
    pub mirrors: Vec<Endpoint>,
    /// Use only the mirrors, never the registry itself.
    pub mirrors_only: bool,
    /// The registry itself uses HTTP without TLS.
    pub plain_http: bool,
    /// TLS settings for this host, also when it is a mirror of another registry.
    pub tls: Tls,
}

/// All configured registries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registries {
    /// By host name as in image names, with its port; `*` is the default for all others.
    pub hosts: BTreeMap<String, Registry>,
    /// Credentials by registry, used if a pull has none.
    pub logins: RegistryCredentials,
    /// Registries to search, in this order, for an image name without a registry.
    pub search: Vec<String>,
}

impl Default for Registries {
    fn default() -> Self {
        Self { hosts: BTreeMap::new(), logins: RegistryCredentials::default(), search: vec![HUB.to_owned()] }
    }
}

/// An endpoint for one pull, with the credentials for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) url: Url,
    pub(crate) credentials: Option<Credentials>,
    /// The registry that it mirrors.
    pub(crate) mirrors: Option<String>,
}

impl Registries {
    /// Returns the endpoints to try for a repository, in order.
    ///
    /// Credentials `given` with a pull are only for the registry: a mirror on another host gets
    /// only those configured for that host.
    pub(crate) fn sources(
        &self,
        host: &str,
        path: &str,
        given: Option<&Credentials>,
    ) -> Result<Vec<Source>, BadEndpoint> {
        let default = Registry::default();
        let registry = self.hosts.get(host).or_else(|| self.hosts.get("*")).unwrap_or(&default);
        let own = self.own_endpoint(host, registry.plain_http)?;
        let credentials = given.or_else(|| self.logins.find(host, path));

        let mut sources: Vec<Source> = registry
            .mirrors
            .iter()
            .map(|mirror| Source {
                url: mirror.url.clone(),
                credentials: match mirror.url.origin() == own.url.origin() {
                    true => credentials.cloned(),
                    false => self.logins.find(&host_name(&mirror.url), path).cloned(),
                },
                mirrors: Some(host.to_owned()),
            })
            .collect();
        if !registry.mirrors_only {
            sources.push(Source { url: own.url, credentials: credentials.cloned(), mirrors: None });
        }
        Ok(sources)
    }

    /// Returns the TLS settings for exactly the host and port of `url`, and the name they are
    /// configured under.
    pub(crate) fn tls(&self, url: &Url) -> Option<(&str, &Tls)> {
        let mut own = self.hosts.iter().filter(|(_, registry)| registry.tls != Tls::default());
        own.find(|(name, _)| is_named(url, name)).map(|(name, registry)| (name.as_str(), &registry.tls))
    }

    /// Returns whether exactly the host and port of `url` have a section, or are those of a mirror.
    pub(crate) fn has(&self, url: &Url) -> bool {
        let place = |url: &Url| (url.host_str().map(str::to_owned), url.port_or_known_default());
        let mut mirrors = self.hosts.values().flat_map(|registry| &registry.mirrors);
        self.hosts.keys().any(|name| is_named(url, name)) || mirrors.any(|mirror| place(&mirror.url) == place(url))
    }

    fn own_endpoint(&self, host: &str, plain_http: bool) -> Result<Endpoint, BadEndpoint> {
        // Loopback traffic stays on the machine and needs no TLS; certificates configured for it
        // enable TLS.
        let has_tls = self.hosts.get(host).is_some_and(|registry| registry.tls != Tls::default());
        let scheme = if plain_http || (is_loopback(host) && !has_tls) { "http" } else { "https" };
        let host = if host == HUB { HUB_API } else { host };
        format!("{scheme}://{host}/").parse()
    }
}

/// Returns whether a registry's name in image names has exactly the host and port of `url`.
fn is_named(url: &Url, name: &str) -> bool {
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return false };
    let name = if name == HUB { HUB_API } else { name };
    let (plain, default) = (name.eq_ignore_ascii_case(host), url.port().is_none());
    (plain && default) || name.eq_ignore_ascii_case(&format!("{host}:{port}"))
}

/// Returns a URL's host as in image names, with its port unless it is the default of the scheme.
fn host_name(url: &Url) -> String {
    match (url.host_str().unwrap_or_default(), url.port()) {
        (HUB_API, None) => HUB.to_owned(),
        (host, None) => host.to_owned(),
        (host, Some(port)) => format!("{host}:{port}"),
    }
}

pub(crate) fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(sources: &[Source]) -> Vec<&str> {
        sources.iter().map(|source| source.url.as_str()).collect()
    }

    #[test]
    fn unknown_hosts_use_tls_and_loopback_does_not() {
        let none = Registries::default();
        let of = |host: &str| none.sources(host, "x", None).unwrap().remove(0).url.to_string();
        assert_eq!(of("docker.io"), "https://registry-1.docker.io/");
        assert_eq!(of("a.b:5000"), "https://a.b:5000/");
        assert_eq!(of("127.0.0.1:5000"), "http://127.0.0.1:5000/");
        assert_eq!(of("localhost"), "http://localhost/");
        assert_eq!(of("[::1]:5000"), "http://[::1]:5000/");
        assert_eq!(of("127.0.0.1.evil.example"), "https://127.0.0.1.evil.example/");
    }

    #[test]
    fn mirrors_come_first_and_do_not_get_credentials_of_others() {
        let given = Credentials::RegistryToken("secret".into());
        let mirrors = vec![
            "http://m1:5000/prefix".parse().unwrap(),
            "https://m2".parse().unwrap(),
            "https://a.b/".parse().unwrap(),
        ];
        let mut registries = Registries::default();
        registries.hosts.insert("a.b".into(), Registry { mirrors, ..Registry::default() });
        let sources = registries.sources("a.b", "x", Some(&given)).unwrap();
        assert_eq!(urls(&sources), ["http://m1:5000/prefix/", "https://m2/", "https://a.b/", "https://a.b/"]);
        let seen: Vec<_> = sources.iter().map(|source| source.credentials.clone()).collect();
        assert_eq!(seen, [None, None, Some(given.clone()), Some(given)]);
    }

    #[test]
    fn a_star_is_the_default_and_mirrors_only_excludes_the_registry() {
        let mirror: Endpoint = "http://127.0.0.1:5000".parse().unwrap();
        let mut registries = Registries::default();
        let registry = Registry { mirrors: vec![mirror], mirrors_only: true, ..Registry::default() };
        registries.hosts.insert("*".into(), registry);
        assert_eq!(urls(&registries.sources("quay.io", "x", None).unwrap()), ["http://127.0.0.1:5000/"]);
        let none = Registry { mirrors_only: true, ..Registry::default() };
        registries.hosts.insert("a.b".into(), none);
        assert!(registries.sources("a.b", "x", None).unwrap().is_empty());
    }

    #[test]
    fn configured_logins_are_used_by_host_if_a_pull_has_none() {
        let logins = br#"{"auths": {"a.b": {"registrytoken": "own"}, "m.x:5000": {"registrytoken": "mirror"},
            "docker.io/team": {"registrytoken": "team"}}}"#;
        let mirrors = ["http://m.x:5000", "https://m.x", "https://a.b"].map(|url| url.parse().unwrap());
        let registry = Registry { mirrors: mirrors.into(), ..Registry::default() };
        let hosts = [("a.b".to_owned(), registry)].into();
        let registries =
            Registries { hosts, logins: RegistryCredentials::parse(logins).unwrap(), ..Registries::default() };
        let token = |text: &str| Some(Credentials::RegistryToken(text.into()));
        let seen = |host, path, given| {
            let sources = registries.sources(host, path, given).unwrap();
            sources.into_iter().map(|source| source.credentials).collect::<Vec<_>>()
        };
        assert_eq!(seen("a.b", "x", None), [token("mirror"), None, token("own"), token("own")]);
        let given = token("given");
        assert_eq!(seen("a.b", "x", given.as_ref()), [token("mirror"), None, given.clone(), given.clone()]);
        assert_eq!(seen("docker.io", "team/x", None), [token("team")]);
        assert_eq!(seen("docker.io", "other/x", None), [None]);
    }

    #[test]
    fn certificates_are_for_one_host_and_port() {
        let authority = rcgen::generate_simple_self_signed(["a.b".to_owned()]).unwrap().cert.pem();
        let tls = Tls::default().with_authorities(authority.as_bytes()).unwrap();
        let registry = Registry { tls, ..Registry::default() };
        let names = ["a.b", "c.d:5000", "docker.io", "[::1]:5000", "*"];
        let hosts = names.map(|name| (name.to_owned(), registry.clone())).into();
        let registries = Registries { hosts, ..Registries::default() };
        let found = |url: &str| registries.tls(&url.parse().unwrap()).map(|(name, _)| name.to_owned());
        for (url, name) in [
            ("https://a.b/v2/", Some("a.b")),
            ("https://A.B:443/", Some("a.b")),
            ("https://a.b:5000/", None),
            ("https://x.a.b/", None),
            ("https://a.b.c/", None),
            ("https://c.d:5000/", Some("c.d:5000")),
            ("https://c.d/", None),
            ("https://registry-1.docker.io/", Some("docker.io")),
            ("https://[::1]:5000/", Some("[::1]:5000")),
            ("https://elsewhere.example/", None),
        ] {
            assert_eq!(found(url).as_deref(), name, "{url}");
        }
        let own = registries.sources("[::1]:5000", "x", None).unwrap().remove(0);
        assert_eq!(own.url.as_str(), "https://[::1]:5000/", "certificates on loopback mean TLS");
    }

    #[test]
    fn urls_with_secrets_queries_or_other_schemes_are_refused() {
        for bad in ["", "a.b", "ftp://a", "http://", "http://u:p@a", "http://a/?x", "http://a/#x", "file:///etc"] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
        for bad in ["https://me:hunter2@a.b", "https://me:hunt@er2@a.b", "ftp://me:hunter2@a.b/"] {
            let text = bad.parse::<Endpoint>().unwrap_err().to_string();
            assert!(!text.contains("hunt") && !text.contains("er2") && text.contains("a.b"), "{text}");
        }
    }

    #[test]
    fn credentials_do_not_print() {
        let shown = format!("{:?}", Credentials::Basic { username: "me".into(), password: "hunter2".into() });
        assert!(!shown.contains("hunter2"));
    }
}
