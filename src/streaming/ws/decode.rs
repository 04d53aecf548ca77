//! Decodes frames into parts of messages.

use bytes::{Buf as _, Bytes, BytesMut};

use super::ProtocolError;
use super::encode::{BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT};

/// A received event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A part of a message; `first` begins one and `last` ends it.
    Part {
        bytes: Bytes,
        first: bool,
        last: bool,
    },
    Ping(Bytes),
    Pong,
    Close,
}

/// The sender of the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// All its frames are masked.
    Client,
    /// None of its frames are masked.
    Server,
}

/// Decodes the frames of one side of a connection.
#[derive(Debug)]
pub struct Decoder {
    from: From,
    /// The frame that is being received.
    current: Option<Frame>,
    /// A fragmented message is not complete yet.
    within: bool,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    left: u64,
    mask: [u8; 4],
    /// The number of decoded bytes modulo the length of the mask.
    turn: usize,
    first: bool,
    last: bool,
}

/// The header of a frame.
struct Head {
    size: usize,
    last: bool,
    kind: u8,
    length: u64,
    mask: [u8; 4],
}

impl Decoder {
    /// Creates a decoder for frames of a client.
    #[must_use]
    pub fn of_client() -> Self {
        Self { from: From::Client, current: None, within: false }
    }

    /// Creates a decoder for frames of a server.
    #[must_use]
    pub fn of_server() -> Self {
        Self { from: From::Server, ..Self::of_client() }
    }

    /// Removes the next event from the front of `buffer`, if there is one. Needs at most 139 bytes
    /// at once.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Event>, ProtocolError> {
        if let Some(frame) = self.current {
            return Ok(self.piece(frame, buffer));
        }
        let Some(head) = self.head(buffer)? else { return Ok(None) };
        let Head { size, last, kind, length, mask } = head;
        if kind & 8 != 0 {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if buffer.len() < size + length {
                return Ok(None);
            }
            buffer.advance(size);
            let mut content = buffer.split_to(length);
            unmask(&mut content, mask, 0);
            return Ok(Some(match kind {
                PING => Event::Ping(content.freeze()),
                CLOSE => Event::Close,
                _ => Event::Pong,
            }));
        }
        let first = kind != CONTINUATION;
        if first == self.within {
            return Err(ProtocolError::Order);
        }
        self.within = !last;
        buffer.advance(size);
        Ok(self.piece(Frame { left: length, mask, turn: 0, first, last }, buffer))
    }

    fn head(&self, buffer: &[u8]) -> Result<Option<Head>, ProtocolError> {
        let [a, b, rest @ ..] = buffer else { return Ok(None) };
        if a & 0x70 != 0 {
            return Err(ProtocolError::Reserved);
        }
        let (last, kind) = (a & 0x80 != 0, a & 0x0f);
        if !matches!(kind, CONTINUATION | TEXT | BINARY | CLOSE | PING | PONG) {
            return Err(ProtocolError::Kind(kind));
        }
        if (b & 0x80 != 0) != (self.from == From::Client) {
            return Err(ProtocolError::Mask);
        }
        let short = b & 0x7f;
        if kind & 8 != 0 && (!last || short > 125) {
            return Err(ProtocolError::Control);
        }
        let (length, wide) = match short {
            126 => match rest.first_chunk() {
                Some(wide) => (u64::from(u16::from_be_bytes(*wide)), 2),
                None => return Ok(None),
            },
            127 => match rest.first_chunk() {
                Some(wide) => (u64::from_be_bytes(*wide), 8),
                None => return Ok(None),
            },
            short => (u64::from(short), 0),
        };
        if length >> 63 != 0 {
            return Err(ProtocolError::Length(length));
        }
        let (mask, masked) = match self.from {
            From::Server => ([0; 4], 0),
            From::Client => match rest[wide..].first_chunk() {
                Some(mask) => (*mask, 4),
                None => return Ok(None),
            },
        };
        Ok(Some(Head { size: 2 + wide + masked, last, kind, length, mask }))
    }

    fn piece(&mut self, mut frame: Frame, buffer: &mut BytesMut) -> Option<Event> {
        let count = usize::try_from(frame.left).unwrap_or(usize::MAX).min(buffer.len());
        let over = count as u64 == frame.left;
        if count == 0 && !over {
            self.current = Some(frame);
            return None;
        }
        let mut bytes = buffer.split_to(count);
        unmask(&mut bytes, frame.mask, frame.turn);
        let event = Event::Part { bytes: bytes.freeze(), first: frame.first, last: over && frame.last };
        frame.left -= count as u64;
        frame.turn = (frame.turn + count) % 4;
        frame.first = false;
        self.current = (!over).then_some(frame);
        Some(event)
    }
}

/// Applies or removes the mask, starting at its byte `turn`; eight bytes at a time.
pub(super) fn unmask(bytes: &mut [u8], mut mask: [u8; 4], turn: usize) {
    if mask == [0; 4] {
        return;
    }
    mask.rotate_left(turn % 4);
    let wide = u64::from_ne_bytes([mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3]]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}
