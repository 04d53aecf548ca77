//! The proof that a server understood what it is asked for.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

/// What the protocol has every server add.
const SECRET_OF_NOBODY: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The answer to a `Sec-WebSocket-Key`; none where that is not 16 bytes.
#[must_use]
pub fn accept(key: &str) -> Option<String> {
    if STANDARD.decode(key).ok()?.len() != 16 {
        return None;
    }
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(SECRET_OF_NOBODY);
    Some(STANDARD.encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard_is_answered_as_there() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ==").as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        for bad in ["", "AAAA", "not base64 at all!!!!!!!", "dGhlIHNhbXBsZSBub25jZQ"] {
            assert_eq!(accept(bad), None, "{bad}");
        }
    }
}
