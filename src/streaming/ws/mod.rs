//! WebSocket (RFC 6455) framing and handshake on the server's side, without input or output.
//!
//! Parts of messages are passed on as they arrive, so messages are not buffered and have no maximum
//! length.

mod accept_key;
mod decode;
mod encode;

pub use accept_key::accept;
pub use decode::{Decoder, Event};
pub use encode::{BINARY, CLOSE, HEAD_MAX, PING, PONG, TEXT, frame, head, masked_frame};

/// A violation of the protocol; the connection cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error(
        "the peer of an exec, attach or port-forward connection sent a WebSocket frame with reserved bits, without a negotiated extension"
    )]
    Reserved,
    #[error(
        "the peer of an exec, attach or port-forward connection sent a WebSocket frame of the unsupported type {0}"
    )]
    Kind(u8),
    #[error(
        "the peer of an exec, attach or port-forward connection sent a WebSocket frame with wrong masking: clients mask, servers do not"
    )]
    Mask,
    #[error(
        "the peer of an exec, attach or port-forward connection sent a WebSocket control frame that is fragmented or longer than 125 bytes"
    )]
    Control,
    #[error(
        "the peer of an exec, attach or port-forward connection sent a WebSocket message inside a fragmented one, or a continuation without a message"
    )]
    Order,
    #[error(
        "the peer of an exec, attach or port-forward connection sent a WebSocket frame of {0} bytes, which is too long"
    )]
    Length(u64),
}
