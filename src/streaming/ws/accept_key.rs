//! The `Sec-WebSocket-Accept` response of a server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

/// The GUID of RFC 6455 that every server appends.
const HANDSHAKE_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Returns the response to a `Sec-WebSocket-Key`; `None` if that is not 16 bytes.
#[must_use]
pub fn accept(key: &str) -> Option<String> {
    if STANDARD.decode(key).ok()?.len() != 16 {
        return None;
    }
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(HANDSHAKE_GUID);
    Some(STANDARD.encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc_has_the_expected_response() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ==").as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        for bad in ["", "AAAA", "not base64 at all!!!!!!!", "dGhlIHNhbXBsZSBub25jZQ"] {
            assert_eq!(accept(bad), None, "{bad}");
        }
    }
}
