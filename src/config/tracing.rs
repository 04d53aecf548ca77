//! Settings of tracing: the collector for spans.

use std::time::Duration;

use http::Uri;

use super::file::RawTracing;
use super::resolve::{InvalidSetting, absolute, at_least, invalid};

/// The largest value of `sampling_per_million`: every request starts a trace.
pub const SAMPLE_ALL: u32 = 1_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingConfig {
    /// `http://HOST:PORT` or `unix://PATH`.
    pub endpoint: String,
    /// The number of traces that a million requests start.
    pub sampling_per_million: u32,
    pub service_name: String,
    pub timeout: Duration,
}

/// The longest allowed timeout for one batch of spans, in seconds.
const TIMEOUT_MAX: u64 = 600;

pub(super) fn resolve(raw: RawTracing) -> Result<Option<TracingConfig>, InvalidSetting> {
    let RawTracing { endpoint, sampling_per_million, service_name, timeout } = raw;
    if sampling_per_million > SAMPLE_ALL {
        let problem = format_args!("must be at most {SAMPLE_ALL}, got {sampling_per_million}");
        return Err(invalid("tracing.sampling_per_million", problem));
    }
    if service_name.is_empty() || service_name.len() > 255 || service_name.contains(char::is_control) {
        return Err(invalid("tracing.service_name", "must be 1 to 255 bytes without control characters"));
    }
    let timeout = at_least("tracing.timeout", timeout, 1)?;
    if timeout > TIMEOUT_MAX {
        return Err(invalid("tracing.timeout", format_args!("must be at most {TIMEOUT_MAX}, got {timeout}")));
    }
    let timeout = Duration::from_secs(timeout);
    let endpoint = match endpoint.as_str() {
        "" => return Ok(None),
        named => collector(named)?,
    };
    Ok(Some(TracingConfig { endpoint, sampling_per_million, service_name, timeout }))
}

/// Parses an endpoint in the kubelet's form, `HOST:PORT` with or without `http://`, or a Unix socket.
fn collector(text: &str) -> Result<String, InvalidSetting> {
    let key = "tracing.endpoint";
    if let Some(path) = text.strip_prefix("unix://") {
        return Ok(format!("unix://{}", absolute(key, path.into())?.display()));
    }
    if text.starts_with("https://") {
        return Err(invalid(key, "https is not supported: use a collector on this node; it can forward with TLS"));
    }
    // The error does not show the value, which may contain a password.
    let refused = || invalid(key, "must be HOST:PORT, http://HOST:PORT or unix:///PATH");
    let uri: Uri = format!("http://{}", text.strip_prefix("http://").unwrap_or(text)).parse().map_err(|_| refused())?;
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(refused)?;
    let is_bare = matches!(uri.path_and_query().map(|path| path.as_str()), None | Some("/"));
    match authority.port_u16() {
        Some(1..) if is_bare && !authority.host().is_empty() => Ok(format!("http://{authority}")),
        _ => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Result<Option<String>, String> {
        let raw = RawTracing { endpoint: text.into(), ..RawTracing::default() };
        resolve(raw).map(|config| config.map(|config| config.endpoint)).map_err(|e| e.to_string())
    }

    #[test]
    fn a_collector_is_a_host_and_port_or_a_socket() {
        assert_eq!(endpoint(""), Ok(None));
        for (text, meant) in [
            ("localhost:4317", "http://localhost:4317"),
            ("http://127.0.0.1:4317/", "http://127.0.0.1:4317"),
            ("[::1]:4317", "http://[::1]:4317"),
            ("unix:///run/otel.sock", "unix:///run/otel.sock"),
        ] {
            assert_eq!(endpoint(text), Ok(Some(meant.to_owned())));
        }
        for bad in [
            "localhost",
            "localhost:0",
            ":4317",
            "http://localhost",
            "https://localhost:4317",
            "ftp://localhost:4317",
            "http://me:swordfish@localhost:4317",
            "localhost:4317/v1/traces",
            "localhost:4317?a=1",
            "unix://otel.sock",
            "unix:///a/../b",
            "a b:1",
        ] {
            let error = endpoint(bad).unwrap_err();
            assert!(error.starts_with("tracing.endpoint: "), "{bad}: {error}");
            assert!(!error.contains("swordfish"), "{error}");
        }
    }

    #[test]
    fn invalid_settings_are_refused_by_name_even_without_an_endpoint() {
        for (name, change) in [
            ("tracing.sampling_per_million", (|raw| raw.sampling_per_million = SAMPLE_ALL + 1) as fn(&mut RawTracing)),
            ("tracing.service_name", |raw| raw.service_name.clear()),
            ("tracing.service_name", |raw| raw.service_name = "a\nb".into()),
            ("tracing.timeout", |raw| raw.timeout = 0),
            ("tracing.timeout", |raw| raw.timeout = 601),
        ] {
            let mut raw = RawTracing::default();
            change(&mut raw);
            let error = resolve(raw).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
