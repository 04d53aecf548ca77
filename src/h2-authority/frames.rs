//! Tracks the HTTP/2 frames of a connection, and rewrites the HEADERS frames among them.

use tokio::io::ReadBuf;

use super::hpack;

/// The start of every client connection (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a frame header.
const HEAD: usize = 9;
/// The longest payload that a client may send; the server does not advertise more.
const PAYLOAD_MAX: usize = 1 << 14;
/// The type of frames that start a request.
const HEADERS: u8 = 1;
/// Flags of HEADERS: padding, whose length is the first byte; priority.
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// The position in a connection, and one payload that may be held.
#[derive(Debug)]
pub(super) struct Frames {
    next: Next,
    head: [u8; HEAD],
    held: HeldPayload,
}

/// The part of the connection that the next byte belongs to.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// The preface, after this many bytes of it.
    Preface(usize),
    /// A frame header, after this many bytes of it.
    Head(usize),
    /// A payload that passes unchanged, with this many bytes left.
    Other(usize),
    /// A HEADERS payload of this total length.
    Headers(usize),
    /// Not HTTP/2.
    Unknown,
}

/// A HEADERS payload that did not arrive in one piece.
#[derive(Debug)]
enum HeldPayload {
    Nothing,
    /// Allocated in full length, of which only the first bytes have arrived.
    Coming {
        payload: Vec<u8>,
        received: usize,
    },
    /// The number of its bytes that were released.
    Going {
        payload: Vec<u8>,
        gone: usize,
    },
}

impl Frames {
    pub(super) fn new() -> Self {
        Self { next: Next::Preface(0), head: [0; HEAD], held: HeldPayload::Nothing }
    }

    /// Rewrites the next bytes of the connection, and returns how many of them may be passed on.
    ///
    /// The others are held. [`Self::release`] passes them on once [`Self::missing`] is filled,
    /// before any later bytes.
    pub(super) fn pass(&mut self, bytes: &mut [u8]) -> usize {
        let mut passed = 0;
        while passed < bytes.len() {
            let rest = &mut bytes[passed..];
            passed += match self.next {
                Next::Preface(seen) => self.preface(seen, rest),
                Next::Head(seen) => self.head(seen, rest),
                Next::Other(left) => self.other(left, rest),
                Next::Headers(length) if length <= rest.len() => self.headers(&mut rest[..length]),
                Next::Headers(length) => {
                    self.hold(length, rest);
                    return passed;
                }
                Next::Unknown => rest.len(),
            };
        }
        passed
    }

    fn preface(&mut self, seen: usize, rest: &[u8]) -> usize {
        let wanted = &PREFACE[seen..];
        let length = wanted.len().min(rest.len());
        self.next = match seen + length {
            _ if rest[..length] != wanted[..length] => Next::Unknown,
            seen if seen == PREFACE.len() => Next::Head(0),
            seen => Next::Preface(seen),
        };
        length
    }

    fn head(&mut self, seen: usize, rest: &[u8]) -> usize {
        let length = (HEAD - seen).min(rest.len());
        self.head[seen..seen + length].copy_from_slice(&rest[..length]);
        self.next = if seen + length < HEAD { Next::Head(seen + length) } else { self.payload() };
        length
    }

    /// Returns the kind of the payload after the header.
    fn payload(&self) -> Next {
        let [a, b, c, kind, ..] = self.head;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        match (kind, length) {
            (_, 0) => Next::Head(0),
            (HEADERS, 1..=PAYLOAD_MAX) => Next::Headers(length),
            _ => Next::Other(length),
        }
    }

    fn other(&mut self, left: usize, rest: &[u8]) -> usize {
        let length = left.min(rest.len());
        self.next = if length < left { Next::Other(left - length) } else { Next::Head(0) };
        length
    }

    fn headers(&mut self, payload: &mut [u8]) -> usize {
        let [.., flags, _, _, _, _] = self.head;
        if let Some(block) = block(flags, payload) {
            hpack::rewrite_authority(block);
        }
        self.next = Next::Head(0);
        payload.len()
    }

    fn hold(&mut self, length: usize, begin: &[u8]) {
        let mut payload = vec![0; length];
        payload[..begin.len()].copy_from_slice(begin);
        self.held = HeldPayload::Coming { payload, received: begin.len() };
    }

    /// Returns the buffer for the next bytes of the connection while a payload is held.
    pub(super) fn missing(&mut self) -> Option<&mut [u8]> {
        match &mut self.held {
            HeldPayload::Coming { payload, received } => Some(&mut payload[*received..]),
            HeldPayload::Nothing | HeldPayload::Going { .. } => None,
        }
    }

    /// Records that `bytes` were read into [`Self::missing`]; 0 means the end of the connection,
    /// and the held bytes are then passed on unchanged.
    pub(super) fn received(&mut self, bytes: usize) {
        self.held = match std::mem::replace(&mut self.held, HeldPayload::Nothing) {
            HeldPayload::Coming { mut payload, received } if bytes == 0 => {
                self.next = Next::Unknown;
                payload.truncate(received);
                HeldPayload::Going { payload, gone: 0 }
            }
            HeldPayload::Coming { mut payload, received } if received + bytes == payload.len() => {
                self.headers(&mut payload);
                HeldPayload::Going { payload, gone: 0 }
            }
            HeldPayload::Coming { payload, received } => HeldPayload::Coming { payload, received: received + bytes },
            held @ (HeldPayload::Nothing | HeldPayload::Going { .. }) => held,
        };
    }

    /// Copies a held, complete payload to `into` as far as there is space; returns false if there
    /// is none.
    pub(super) fn release(&mut self, into: &mut ReadBuf<'_>) -> bool {
        let HeldPayload::Going { payload, gone } = &mut self.held else { return false };
        let rest = &payload[*gone..];
        let length = rest.len().min(into.remaining());
        into.put_slice(&rest[..length]);
        *gone += length;
        if *gone == payload.len() {
            self.held = HeldPayload::Nothing;
        }
        true
    }
}

/// Returns the header block in a HEADERS payload, without padding and priority.
fn block(flags: u8, payload: &mut [u8]) -> Option<&mut [u8]> {
    let (mut begin, mut end) = (0, payload.len());
    if flags & PADDED != 0 {
        begin += 1;
        end = end.checked_sub(usize::from(*payload.first()?))?;
    }
    if flags & PRIORITY != 0 {
        begin += 5;
    }
    payload.get_mut(begin..end)
}
