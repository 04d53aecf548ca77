//! Image names: `[registry[:port]/]path[:tag][@digest]`, normalised.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;

/// The registry of image names without one, unless others are configured.
pub const HUB: &str = "docker.io";
const NAME_MAX: usize = 255;
const TAG_MAX: usize = 128;

/// An image name in full: a bare `busybox` is `docker.io/library/busybox:latest`.
///
/// If there is a digest, the tag is dropped: the digest alone identifies the image.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    registry: String,
    path: String,
    pick: TagOrDigest,
}

/// Selects an image of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TagOrDigest {
    /// The image that a tag currently refers to.
    Tag(String),
    /// The image with this digest.
    Digest(Digest),
}

/// Text that is not an image name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid image reference {text:?}: {why}")]
pub struct BadReference {
    text: String,
    why: &'static str,
}

impl model::ErrorClass for BadReference {
    fn kind(&self) -> model::ErrorKind {
        model::ErrorKind::Invalid
    }
}

impl Reference {
    /// Returns the registry's host name and port as in the name (`docker.io`, not its API host), in
    /// lower case.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the repository inside the registry, such as `library/busybox`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the tag or digest.
    pub fn pick(&self) -> &TagOrDigest {
        &self.pick
    }

    /// Returns `registry/path` without tag or digest.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.registry, self.path)
    }

    /// Returns the full names for `text`, in order of preference and at least one: `text` itself if
    /// it names a registry, otherwise that name in each of the registries to `search`.
    pub fn candidates(text: &str, search: &[String]) -> Result<Vec<Self>, BadReference> {
        let bad = |why| bad(text, why);
        let parts = Parts::of(text).map_err(bad)?;
        if let Some(registry) = parts.registry {
            return Ok(vec![parts.at(registry).map_err(bad)?]);
        }
        let mut found = Vec::with_capacity(search.len());
        for registry in search {
            let reference = parts.at(registry).map_err(bad)?;
            if !found.contains(&reference) {
                found.push(reference);
            }
        }
        if found.is_empty() {
            return Err(bad("has no registry, and no registry to search is configured"));
        }
        Ok(found)
    }

    /// Returns whether the image name `text` begins with a registry.
    pub fn names_registry(text: &str) -> bool {
        split_registry(text).0.is_some()
    }

    /// Returns whether `text` is a valid registry: a host name with an optional port.
    pub fn is_registry(text: &str) -> bool {
        is_registry(text)
    }

    /// Returns the same repository at `digest`.
    pub fn at(&self, digest: &Digest) -> Self {
        Self { pick: TagOrDigest::Digest(digest.clone()), ..self.clone() }
    }
}

impl TagOrDigest {
    /// Returns the tag or digest as used in a registry URL.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Tag(tag) => tag,
            Self::Digest(digest) => digest.as_str(),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pick {
            TagOrDigest::Tag(tag) => write!(f, "{}/{}:{tag}", self.registry, self.path),
            TagOrDigest::Digest(digest) => write!(f, "{}/{}@{digest}", self.registry, self.path),
        }
    }
}

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        let parts = Parts::of(text).map_err(|why| bad(text, why))?;
        parts.at(parts.registry.unwrap_or(HUB)).map_err(|why| bad(text, why))
    }
}

fn bad(text: &str, why: &'static str) -> BadReference {
    BadReference { text: text.chars().take(512).collect(), why }
}

/// The parts of a name, before normalisation.
struct Parts<'a> {
    registry: Option<&'a str>,
    path: &'a str,
    pick: TagOrDigest,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("empty");
        }
        if text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return Err("64 hex digits are an image id, expected a name");
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse::<Digest>().map_err(|_| "invalid digest")?)),
            None => (text, None),
        };
        // A colon after the last slash starts a tag; one before it belongs to a port.
        let slash = rest.rfind('/').map_or(0, |at| at + 1);
        let (name, tag) = match rest[slash..].find(':') {
            Some(colon) => (&rest[..slash + colon], Some(&rest[slash + colon + 1..])),
            None => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err("invalid tag");
        }
        let (registry, path) = split_registry(name);
        let pick = match (digest, tag) {
            (Some(digest), _) => TagOrDigest::Digest(digest),
            (None, Some(tag)) => TagOrDigest::Tag(tag.to_owned()),
            (None, None) => TagOrDigest::Tag("latest".to_owned()),
        };
        Ok(Self { registry, path, pick })
    }

    /// Returns the full name in a registry.
    fn at(&self, registry: &str) -> Result<Reference, &'static str> {
        if !is_registry(registry) {
            return Err("invalid registry host or port");
        }
        let registry = match registry.to_ascii_lowercase() {
            hub if matches!(hub.as_str(), "index.docker.io" | "registry-1.docker.io") => HUB.to_owned(),
            hub if matches!(hub.as_str(), "docker.io:443" | "index.docker.io:443" | "registry-1.docker.io:443") => {
                HUB.to_owned()
            }
            other => other,
        };
        let path = match self.path {
            path if registry == HUB && !path.contains('/') => format!("library/{path}"),
            path => path.to_owned(),
        };
        if registry.len() + 1 + path.len() > NAME_MAX {
            return Err("name longer than 255 bytes");
        }
        if !is_path(&path) {
            return Err("a repository must be lower-case letters and digits separated by '/', '.', '_', '__' or '-'");
        }
        Ok(Reference { registry, path, pick: self.pick.clone() })
    }
}

/// Splits a name into its registry and the rest.
fn split_registry(name: &str) -> (Option<&str>, &str) {
    let is_host = |first: &str| first.eq_ignore_ascii_case("localhost") || first.contains(['.', ':']);
    match name.split_once('/') {
        Some((first, rest)) if is_host(first) => (Some(first), rest),
        _ => (None, name),
    }
}

pub(crate) fn is_registry(text: &str) -> bool {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let Some((address, after)) = rest.split_once(']') else { return false };
        if address.parse::<std::net::Ipv6Addr>().is_err() {
            return false;
        }
        match (after, after.strip_prefix(':')) {
            ("", _) => return true,
            (_, Some(port)) => return is_port(port),
            (_, None) => return false,
        }
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.split('.').all(label) && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    // A second spelling of a port would avoid the settings of its registry.
    (1..=5).contains(&text.len())
        && !text.starts_with('0')
        && text.bytes().all(|b| b.is_ascii_digit())
        && text.parse::<u16>().is_ok_and(|port| port != 0)
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=TAG_MAX).contains(&text.len())
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

/// A repository's path: components separated by `/`.
pub(crate) fn is_path(text: &str) -> bool {
    text.split('/').all(is_path_component)
}

/// Runs of `[a-z0-9]` joined by `.`, `_`, `__` or any number of `-`.
fn is_path_component(text: &str) -> bool {
    let alnum = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !text.starts_with(alnum) || !text.ends_with(alnum) {
        return false;
    }
    text.split(alnum).all(|between| matches!(between, "" | "." | "_" | "__") || between.bytes().all(|b| b == b'-'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full(text: &str) -> String {
        text.parse::<Reference>().unwrap().to_string()
    }

    #[test]
    fn short_names_get_the_docker_hub_prefix() {
        assert_eq!(full("busybox"), "docker.io/library/busybox:latest");
        assert_eq!(full("busybox:1.29-2"), "docker.io/library/busybox:1.29-2");
        assert_eq!(full("bitnami/redis"), "docker.io/bitnami/redis:latest");
        assert_eq!(full("index.docker.io/a"), "docker.io/library/a:latest");
        assert_eq!(full("docker.io/a"), "docker.io/library/a:latest");
    }

    #[test]
    fn a_short_name_has_a_candidate_in_every_searched_registry() {
        let all = |text: &str, search: &[&str]| {
            let search: Vec<String> = search.iter().map(|&registry| registry.to_owned()).collect();
            let found = Reference::candidates(text, &search);
            found.map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let search = ["a.b:5000", "docker.io", "index.docker.io", "quay.io"];
        let found = ["a.b:5000/x:1", "docker.io/library/x:1", "quay.io/x:1"];
        assert_eq!(all("x:1", &search).unwrap(), found);
        let found = ["a.b:5000/x/y:latest", "docker.io/x/y:latest", "quay.io/x/y:latest"];
        assert_eq!(all("x/y", &search).unwrap(), found);
        assert_eq!(all("localhost/x", &search).unwrap(), ["localhost/x:latest"]);
        assert_eq!(all("a.b/x", &[]).unwrap(), ["a.b/x:latest"]);
        assert!(
            all("x", &[]).unwrap_err().to_string().contains("has no registry, and no registry to search is configured")
        );
        for (text, search) in [("x", "a b"), ("x", "https://a.b"), ("x", "a.b/c"), ("X", "a.b"), ("", "a.b")] {
            assert!(all(text, &[search]).is_err(), "{text:?} {search:?}");
        }
    }

    #[test]
    fn registries_with_and_without_ports() {
        assert_eq!(full("127.0.0.1:5000/pause:3.9"), "127.0.0.1:5000/pause:3.9");
        assert_eq!(full("localhost/a"), "localhost/a:latest");
        assert_eq!(full("localhost:1/a/b__c/d--e:T_1.x"), "localhost:1/a/b__c/d--e:T_1.x");
        assert_eq!(full("[::1]:5000/a"), "[::1]:5000/a:latest");
        assert_eq!(full("Registry.Example:5000/a:T"), "registry.example:5000/a:T");
        assert_eq!(full("Docker.IO/a"), "docker.io/library/a:latest");
        assert_eq!(full("Localhost/a"), "localhost/a:latest");
    }

    #[test]
    fn a_digest_replaces_the_tag() {
        let digest = Digest::of(b"x");
        let both: Reference = format!("a.b/c:tag@{digest}").parse().unwrap();
        assert_eq!(both.to_string(), format!("a.b/c@{digest}"));
        assert_eq!(both.pick(), &TagOrDigest::Digest(digest));
    }

    #[test]
    fn invalid_references_are_refused() {
        let long = format!("a.b/{}", "x".repeat(252));
        let hex = "a".repeat(64);
        let tag = format!("a:{}", "t".repeat(129));
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "A",
            "a.b/C",
            "a:",
            "a:.x",
            "a:b c",
            "a@",
            "a@sha256:zz",
            "a.b:0/c",
            "a.b:65536/c",
            "a.b:/c",
            "-a.b/c",
            "a..b/c",
            "../../etc",
            "a.b/../c",
            "a.b/c/..",
            "a___b",
            "a_",
            ".a",
            "a._b",
            "Foo/bar",
            "[::1/a",
            "[zz]/a",
            "[::1]x/a",
            "a b",
            "a\n",
            "a\0",
            "ä",
            "http://a.b/c",
            "user@host/a",
            "a.b/",
            "a?x",
            "a#x",
            "a%2e",
            &long,
            &hex,
            &tag,
        ] {
            assert!(bad.parse::<Reference>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in ".*") {
            drop(text.parse::<Reference>());
        }

        #[test]
        fn formatting_and_parsing_a_name_does_not_change_it(text in "([a-zA-Z0-9.-]{1,10}(:[0-9]{1,5})?/)?[a-z0-9._/-]{1,20}(:[a-zA-Z0-9_.-]{1,8})?") {
            if let Ok(reference) = text.parse::<Reference>() {
                let again: Reference = reference.to_string().parse().unwrap();
                prop_assert_eq!(again, reference);
            }
        }

        #[test]
        fn a_parsed_name_cannot_change_the_rest_of_a_url(text in "[ -~]{1,40}") {
            if let Ok(reference) = text.parse::<Reference>() {
                let path = reference.path();
                prop_assert!(path.split('/').all(|part| !part.is_empty() && part != ".."));
                prop_assert!(!path.contains(['?', '#', '%', '@', ':', ' ']));
            }
        }
    }
}
