//! WebSocket (RFC 6455) on the server's side: framing and handshake, without any input or output.
//!
//! Parts of messages are passed on as they come, so no message is too long for its reader, and none is kept.

mod accept_key;
mod decode;
mod encode;

pub use accept_key::accept;
pub use decode::{Decoder, Event};
pub use encode::{BINARY, CLOSE, HEAD_MAX, PING, PONG, TEXT, frame, head, masked_frame};

/// The other side does not keep to the protocol; the connection is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("a frame with bits that nobody agreed on")]
    Reserved,
    #[error("a frame of type {0}")]
    Kind(u8),
    #[error("a frame that is not masked as it should be")]
    Mask,
    #[error("a frame of control that is in parts, or longer than 125 bytes")]
    Control,
    #[error("a message within a message, or the rest of none")]
    Order,
    #[error("a frame of {0} bytes")]
    Length(u64),
}
