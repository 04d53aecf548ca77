//! Negotiates the upgrade of a connection from the headers of its request.

use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use crate::channels::ChannelFraming;
use crate::ws;

const SPDY: &str = "SPDY/3.1";
const VERSIONS: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

/// The negotiated protocol of exec and attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteCommandProtocol {
    pub(crate) transport: Transport,
    /// The outcome is sent as JSON; otherwise only errors, as text.
    pub(crate) json: bool,
    /// There is a stream for terminal sizes.
    pub(crate) resizes: bool,
}

/// The negotiated protocol of port-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortForwardProtocol {
    pub(crate) transport: Transport,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Spdy,
    /// SPDY in WebSocket messages.
    Tunnel,
    Channels(ChannelFraming),
}

impl PortForwardProtocol {
    /// Returns whether the request must name the ports, since the client does not.
    #[must_use]
    pub fn needs_ports(self) -> bool {
        matches!(self.transport, Transport::Channels(_))
    }
}

/// A request that is refused without an upgrade.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unable to upgrade the connection of an exec, attach or port-forward: {message}")]
pub struct UpgradeError {
    pub status: StatusCode,
    pub message: String,
    /// The supported protocols.
    accepted: &'static [&'static str],
}

impl UpgradeError {
    /// Returns an error for an invalid request.
    pub fn bad(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into(), accepted: &[] }
    }

    /// Returns the response, without its text.
    #[must_use]
    pub fn response(&self) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = self.status;
        for name in self.accepted {
            response.headers_mut().append(ACCEPTED, HeaderValue::from_static(name));
        }
        response
    }
}

const REMOTE_SPDY: &[&str] = &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const REMOTE_WS: &[&str] =
    &["v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io"];
const FORWARD_SPDY: &[&str] = &["portforward.k8s.io"];
const FORWARD_TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const FORWARD_WS: &[&str] = &[FORWARD_TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];

/// Negotiates exec or attach, and returns the response.
pub fn remote_command(
    method: &Method,
    headers: &HeaderMap,
) -> Result<(Response<()>, RemoteCommandProtocol), UpgradeError> {
    if is_websocket(headers) {
        let (response, name) = websocket(method, headers, REMOTE_WS)?;
        let words = ChannelFraming { base64: name.contains("base64"), close: name.starts_with("v5") };
        let json = name.starts_with("v4") || name.starts_with("v5");
        return Ok((response, RemoteCommandProtocol { transport: Transport::Channels(words), json, resizes: true }));
    }
    let (response, name) = spdy(headers, REMOTE_SPDY)?;
    let resizes = name.starts_with("v4") || name.starts_with("v3");
    Ok((response, RemoteCommandProtocol { transport: Transport::Spdy, json: name.starts_with("v4"), resizes }))
}

/// Negotiates port-forward, and returns the response.
pub fn port_forward(method: &Method, headers: &HeaderMap) -> Result<(Response<()>, PortForwardProtocol), UpgradeError> {
    if is_websocket(headers) {
        let (response, name) = websocket(method, headers, FORWARD_WS)?;
        let words = ChannelFraming { base64: name.contains("base64"), close: false };
        let transport = if name == FORWARD_TUNNEL { Transport::Tunnel } else { Transport::Channels(words) };
        return Ok((response, PortForwardProtocol { transport }));
    }
    let (response, _) = spdy(headers, FORWARD_SPDY)?;
    Ok((response, PortForwardProtocol { transport: Transport::Spdy }))
}

fn is_websocket(headers: &HeaderMap) -> bool {
    headers.get(UPGRADE).is_some_and(|upgrade| upgrade.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Returns the values of a header, which may be on several lines and several per line.
fn values(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|v| !v.is_empty()).map(str::to_owned).collect()
}

fn wants_upgrade(headers: &HeaderMap) -> bool {
    values(headers, &CONNECTION).iter().any(|value| value.eq_ignore_ascii_case("upgrade"))
}

/// Returns the first protocol of the client that the server supports.
fn common(asked: &[String], ours: &'static [&'static str]) -> Option<&'static str> {
    asked.iter().find_map(|name| ours.iter().copied().find(|our| our == name))
}

fn switching(to: &'static str) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(to));
    response
}

fn spdy(headers: &HeaderMap, ours: &'static [&'static str]) -> Result<(Response<()>, &'static str), UpgradeError> {
    let upgrade = values(headers, &UPGRADE);
    if !wants_upgrade(headers) || !upgrade.iter().any(|value| value.eq_ignore_ascii_case(SPDY)) {
        return Err(UpgradeError::bad("the Upgrade header must be SPDY/3.1 or websocket"));
    }
    let asked = values(headers, &VERSIONS);
    if asked.is_empty() {
        return Err(UpgradeError::bad(format!("missing header {VERSIONS}")));
    }
    let name = common(&asked, ours).ok_or_else(|| UpgradeError {
        status: StatusCode::FORBIDDEN,
        message: format!("unable to negotiate protocol: client supports {asked:?}, server accepts {ours:?}"),
        accepted: ours,
    })?;
    let mut response = switching(SPDY);
    response.headers_mut().insert(VERSIONS, HeaderValue::from_static(name));
    Ok((response, name))
}

/// The name is "" if the client requests none.
fn websocket(
    method: &Method,
    headers: &HeaderMap,
    ours: &'static [&'static str],
) -> Result<(Response<()>, &'static str), UpgradeError> {
    if method != Method::GET || !wants_upgrade(headers) {
        return Err(UpgradeError::bad("websocket requires GET and Connection: Upgrade"));
    }
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(UpgradeError::bad("the version of websocket must be 13"));
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok()).and_then(ws::accept);
    let accept = key.and_then(|accept| HeaderValue::try_from(accept).ok());
    let accept = accept.ok_or_else(|| UpgradeError::bad("the key of websocket must be 16 bytes in base64"))?;
    let asked = values(headers, &SEC_WEBSOCKET_PROTOCOL);
    let mut response = switching("websocket");
    response.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, accept);
    if asked.is_empty() {
        return Ok((response, ""));
    }
    let name = common(&asked, ours).ok_or_else(|| UpgradeError {
        status: StatusCode::FORBIDDEN,
        message: format!("requested protocols {asked:?} are not supported; supported are {ours:?}"),
        accepted: ours,
    })?;
    response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(name));
    Ok((response, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(header).collect()
    }

    const KEY: (&str, &str) = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    const THIRTEEN: (&str, &str) = ("sec-websocket-version", "13");

    #[test]
    fn the_first_common_version_of_the_client_is_used() {
        let asked = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v5.channel.k8s.io"),
            ("x-stream-protocol-version", "v3.channel.k8s.io, v4.channel.k8s.io"),
        ]);
        let (response, protocol) = remote_command(&Method::POST, &asked).unwrap();
        assert_eq!(protocol, RemoteCommandProtocol { transport: Transport::Spdy, json: false, resizes: true });
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(response.headers()["x-stream-protocol-version"], "v3.channel.k8s.io");
        assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
    }

    #[test]
    fn an_unsupported_version_is_refused_with_the_supported_ones() {
        let asked = headers(&[("connection", "Upgrade"), ("upgrade", "spdy/3.1"), ("x-stream-protocol-version", "v9")]);
        let refusal = remote_command(&Method::POST, &asked).unwrap_err();
        assert_eq!(refusal.status, StatusCode::FORBIDDEN);
        assert_eq!(refusal.response().headers().get_all(ACCEPTED).iter().count(), 4);
        let none = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        assert_eq!(remote_command(&Method::POST, &none).unwrap_err().status, StatusCode::BAD_REQUEST);
        assert_eq!(port_forward(&Method::POST, &HeaderMap::new()).unwrap_err().status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn websocket_uses_its_own_protocol_names() {
        let with = |protocol: &'static str| {
            let mut all = headers(&[("connection", "upgrade"), ("upgrade", "WebSocket"), KEY, THIRTEEN]);
            if !protocol.is_empty() {
                all.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
            }
            all
        };
        let protocol = |protocol| remote_command(&Method::GET, &with(protocol)).map(|(_, protocol)| protocol);
        let words = |base64, close| Transport::Channels(ChannelFraming { base64, close });
        let wanted = |transport, json| RemoteCommandProtocol { transport, json, resizes: true };
        assert_eq!(protocol("v5.channel.k8s.io"), Ok(wanted(words(false, true), true)));
        assert_eq!(protocol("v9, v4.channel.k8s.io"), Ok(wanted(words(false, false), true)));
        assert_eq!(protocol("v4.base64.channel.k8s.io"), Ok(wanted(words(true, false), true)));
        assert_eq!(protocol(""), Ok(wanted(words(false, false), false)));
        assert_eq!(protocol("v9").unwrap_err().status, StatusCode::FORBIDDEN);
        let (response, tunnel) = port_forward(&Method::GET, &with(FORWARD_TUNNEL)).unwrap();
        assert_eq!(tunnel.transport, Transport::Tunnel);
        assert_eq!(response.headers()[SEC_WEBSOCKET_PROTOCOL], FORWARD_TUNNEL);
        assert!(port_forward(&Method::GET, &with("v4.channel.k8s.io")).unwrap().1.needs_ports());
        assert!(remote_command(&Method::POST, &with("v5.channel.k8s.io")).is_err());
        let mut old = with("v5.channel.k8s.io");
        old.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("8"));
        assert!(remote_command(&Method::GET, &old).is_err());
    }
}
