//! SPDY/3.1 framing as Kubernetes uses it, without input or output.
//!
//! ```text
//! control  1 version:15 type:16 | flags:8 length:24 | ...
//! data     0 stream:31          | flags:8 length:24 | bytes
//! ```

mod decode;
mod dictionary;
mod encode;
mod headers;

pub use decode::{Decoder, Event};
pub use encode::{Encoder, data_head};
pub use headers::Headers;

/// The version in every control frame.
const VERSION: u16 = 3;
/// The length of the header of every frame.
pub const HEAD: usize = 8;
/// The sender will not write to the stream any more.
const FIN: u8 = 1;
/// Only the side that opened the stream will write to it.
const UNIDIRECTIONAL: u8 = 2;
/// The initial window of a stream: how much a side may send before a window update.
pub const WINDOW: u32 = 64 << 10;

/// Types of control frames.
mod kind {
    pub(super) const SYN_STREAM: u16 = 1;
    pub(super) const SYN_REPLY: u16 = 2;
    pub(super) const RST_STREAM: u16 = 3;
    pub(super) const SETTINGS: u16 = 4;
    pub(super) const PING: u16 = 6;
    pub(super) const GOAWAY: u16 = 7;
    pub(super) const HEADERS: u16 = 8;
    pub(super) const WINDOW_UPDATE: u16 = 9;
}

/// The reason of a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Protocol,
    Refused,
    Cancel,
    Internal,
}

impl Reason {
    fn code(self) -> u32 {
        match self {
            Self::Protocol => 1,
            Self::Refused => 3,
            Self::Cancel => 5,
            Self::Internal => 6,
        }
    }
}

/// A violation of the protocol; the connection cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("the peer of an exec, attach or port-forward connection sent a SPDY frame of the unsupported version {0}")]
    Version(u16),
    #[error(
        "the peer of an exec, attach or port-forward connection sent a SPDY control frame of the unsupported type {0}"
    )]
    Kind(u16),
    #[error(
        "the peer of an exec, attach or port-forward connection sent a SPDY control frame of type {kind} with the invalid length {length}"
    )]
    Length { kind: u16, length: usize },
    #[error(
        "the peer of an exec, attach or port-forward connection sent a SPDY frame for stream 0, which does not exist"
    )]
    NoStream,
    #[error("the peer of an exec, attach or port-forward connection sent SPDY headers that {0}")]
    Headers(&'static str),
}
