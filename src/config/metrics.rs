//! Settings of the metrics endpoint: its address, and the TLS certificate and token that other
//! nodes need.

use std::fmt;
use std::hint::black_box;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::file::RawMetrics;
use super::registries::{Readers, is_empty, read, unusable};
use super::resolve::{invalid, socket};
use super::{InvalidSetting, ServerIdentity};

/// The length of a token, in characters.
const TOKEN_MIN: usize = 16;
const TOKEN_MAX: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsConfig {
    pub listen: MetricsListen,
    pub access: MetricsAccess,
}

/// The address on which metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsListen {
    /// An address of the host; other than loopback only with TLS and a token.
    Address(SocketAddr),
    /// A Unix socket that only root can use.
    Socket(PathBuf),
}

/// The requirements for a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricsAccess {
    /// The certificate for TLS; `None`: plain HTTP.
    pub identity: Option<ServerIdentity>,
    /// `None`: any client.
    pub token: Option<BearerToken>,
}

/// A secret that a client sends with each request. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(Vec<u8>);

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken")
    }
}

impl BearerToken {
    /// Returns the token in a file, without the space around it; `None` if it is not a safe one.
    #[must_use]
    pub fn parse(file: &[u8]) -> Option<Self> {
        let token = file.trim_ascii();
        let valid = (TOKEN_MIN..=TOKEN_MAX).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic);
        valid.then(|| Self(token.to_owned()))
    }

    /// Compares in a time that depends on the length of `presented` alone.
    #[must_use]
    pub fn matches(&self, presented: &[u8]) -> bool {
        let other_length = u8::from(presented.len() != self.0.len());
        let own = self.0.iter().cycle();
        let differing = presented.iter().zip(own).fold(other_length, |all, (a, b)| black_box(all | (a ^ b)));
        differing == 0
    }
}

pub(super) fn resolve(raw: &RawMetrics) -> Result<Option<MetricsConfig>, InvalidSetting> {
    let RawMetrics { listen, tls_cert, tls_key, token_file } = raw;
    let named = [("metrics.tls_cert", tls_cert), ("metrics.tls_key", tls_key), ("metrics.token_file", token_file)];
    let given = named.iter().find(|(_, path)| !is_empty(path)).map(|(key, _)| *key);
    let Some(listen) = address(listen)? else {
        return given.map_or(Ok(None), |key| Err(invalid(key, "requires metrics.listen")));
    };
    if let (MetricsListen::Socket(_), Some(key)) = (&listen, given) {
        return Err(invalid(key, "requires an ADDRESS:PORT in metrics.listen: only root can use a Unix socket"));
    }
    let identity = ServerIdentity::read(("metrics.tls_cert", tls_cert), ("metrics.tls_key", tls_key))?;
    let token = if is_empty(token_file) {
        None
    } else {
        let key = "metrics.token_file";
        let token = BearerToken::parse(&read(key, token_file, Readers::OwnerAlone)?);
        let problem = format_args!("must contain {TOKEN_MIN} to {TOKEN_MAX} printable ASCII characters without spaces");
        Some(token.ok_or_else(|| unusable(key, token_file, problem))?)
    };
    if let MetricsListen::Address(address) = &listen
        && !address.ip().is_loopback()
        && (identity.is_none() || token.is_none())
    {
        let problem = format_args!(
            "{address} is not a loopback address: set metrics.tls_cert, metrics.tls_key and metrics.token_file"
        );
        return Err(invalid("metrics.listen", problem));
    }
    Ok(Some(MetricsConfig { listen, access: MetricsAccess { identity, token } }))
}

/// Returns the files that [`resolve`] reads.
pub(super) fn files(raw: &RawMetrics) -> Vec<PathBuf> {
    let RawMetrics { listen: _, tls_cert, tls_key, token_file } = raw;
    [tls_cert, tls_key, token_file].into_iter().filter(|path| !is_empty(path)).cloned().collect()
}

fn address(text: &str) -> Result<Option<MetricsListen>, InvalidSetting> {
    let key = "metrics.listen";
    if text.is_empty() {
        return Ok(None);
    }
    if text.starts_with('/') || text.starts_with("unix:") {
        return Ok(Some(MetricsListen::Socket(socket(key, text.into())?)));
    }
    match text.parse::<SocketAddr>() {
        Err(_) => Err(invalid(key, format_args!("must be ADDRESS:PORT or an absolute path, got {text:?}"))),
        Ok(address) if address.port() == 0 => Err(invalid(key, format_args!("port must not be 0, got {address}"))),
        Ok(address) => Ok(Some(MetricsListen::Address(address))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    fn problem(change: impl FnOnce(&mut RawMetrics)) -> String {
        let mut raw = RawMetrics { listen: "127.0.0.1:9099".to_owned(), ..RawMetrics::default() };
        change(&mut raw);
        resolve(&raw).unwrap_err().to_string()
    }

    fn secret(dir: &Path, content: &str, mode: u32) -> PathBuf {
        let file = dir.join("token");
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn an_address_that_is_not_loopback_requires_tls_and_a_token() {
        let dir = tempfile::tempdir().unwrap();
        let token = secret(dir.path(), "0123456789abcdef\n", 0o600);
        for address in ["0.0.0.0:9099", "[::]:9099", "192.0.2.1:9099"] {
            let bare = problem(|raw| raw.listen = address.to_owned());
            assert!(bare.starts_with("metrics.listen: ") && bare.contains("set metrics.tls_cert"), "{bare}");
            let without_tls = problem(|raw| {
                (raw.listen, raw.token_file) = (address.to_owned(), token.clone());
            });
            assert!(without_tls.contains("set metrics.tls_cert"), "{without_tls}");
        }
        assert!(problem(|raw| raw.tls_cert = "/x".into()).starts_with("metrics.tls_cert: requires metrics.tls_key"));
        assert!(problem(|raw| raw.tls_key = "/x".into()).starts_with("metrics.tls_key: requires metrics.tls_cert"));
        let off = problem(|raw| (raw.listen, raw.token_file) = (String::new(), token.clone()));
        assert_eq!(off, "metrics.token_file: requires metrics.listen");
        let socket = problem(|raw| (raw.listen, raw.token_file) = ("/run/x.sock".to_owned(), token.clone()));
        assert!(socket.starts_with("metrics.token_file: requires an ADDRESS:PORT"), "{socket}");
    }

    #[test]
    fn a_token_that_is_short_readable_by_others_or_not_text_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (content, mode, part) in [
            ("0123456789abcde", 0o600, "16 to 512"),
            ("0123456789 abcdef", 0o600, "16 to 512"),
            ("", 0o600, "16 to 512"),
            ("0123456789abcdef", 0o644, "mode 0600"),
        ] {
            let file = secret(dir.path(), content, mode);
            let problem = problem(|raw| raw.token_file = file);
            assert!(problem.contains(part) && !problem.contains("01234"), "{problem}");
        }
        let file = secret(dir.path(), " 0123456789abcdef\n", 0o600);
        let raw = RawMetrics { listen: "127.0.0.1:9099".to_owned(), token_file: file, ..RawMetrics::default() };
        let token = resolve(&raw).unwrap().unwrap().access.token.unwrap();
        assert!(token.matches(b"0123456789abcdef"));
        assert_eq!(format!("{token:?}"), "BearerToken");
    }

    #[test]
    fn only_the_whole_token_matches() {
        let token = BearerToken::parse(b"0123456789abcdef").unwrap();
        assert!(token.matches(b"0123456789abcdef"));
        for other in
            ["", "0", "0123456789abcdeF", "0123456789abcde", "0123456789abcdef0", "0123456789abcdef0123456789abcdef"]
        {
            assert!(!token.matches(other.as_bytes()), "{other}");
        }
    }
}
