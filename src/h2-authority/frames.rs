//! Follows the frames of HTTP/2 along a connection, and mends the HEADERS among them.

use tokio::io::ReadBuf;

use super::hpack;

/// What every client begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long the head of a frame is.
const HEAD: usize = 9;
/// The longest payload that a client may send, since the server does not offer more.
const PAYLOAD_MAX: usize = 1 << 14;
/// The type of frames that begin a request.
const HEADERS: u8 = 1;
/// Flags of HEADERS: there is padding, and its length before all else; there is a priority.
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// How far a connection has come, and the one payload that may be kept back of it.
#[derive(Debug)]
pub(super) struct Frames {
    next: Next,
    head: [u8; HEAD],
    held: HeldPayload,
}

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// The preface, after so many bytes of it.
    Preface(usize),
    /// The head of a frame, after so many bytes of it.
    Head(usize),
    /// A payload that passes as it is, of which so many bytes are to come.
    Other(usize),
    /// A payload of HEADERS, with so many bytes in all.
    Headers(usize),
    /// Nothing that we know.
    Unknown,
}

/// A payload of HEADERS that did not come in one piece.
#[derive(Debug)]
enum HeldPayload {
    Nothing,
    /// It has its length already, but only so many bytes have come.
    Coming {
        payload: Vec<u8>,
        came: usize,
    },
    /// So many of its bytes have gone on.
    Going {
        payload: Vec<u8>,
        gone: usize,
    },
}

impl Frames {
    pub(super) fn new() -> Self {
        Self { next: Next::Preface(0), head: [0; HEAD], held: HeldPayload::Nothing }
    }

    /// Mends what came next on the connection, and says how many bytes of it may go on.
    ///
    /// The others are kept. They go on by [`Self::release`] once [`Self::missing`] is filled, and before anything that
    /// comes after them.
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

    /// What the head says of what follows it.
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
        self.held = HeldPayload::Coming { payload, came: begin.len() };
    }

    /// Where the next bytes of the connection have to go, while a payload is kept back.
    pub(super) fn missing(&mut self) -> Option<&mut [u8]> {
        match &mut self.held {
            HeldPayload::Coming { payload, came } => Some(&mut payload[*came..]),
            HeldPayload::Nothing | HeldPayload::Going { .. } => None,
        }
    }

    /// Takes note of so many bytes in [`Self::missing`]; none means that the connection ended, and what there is goes
    /// on as it is.
    pub(super) fn came(&mut self, bytes: usize) {
        self.held = match std::mem::replace(&mut self.held, HeldPayload::Nothing) {
            HeldPayload::Coming { mut payload, came } if bytes == 0 => {
                self.next = Next::Unknown;
                payload.truncate(came);
                HeldPayload::Going { payload, gone: 0 }
            }
            HeldPayload::Coming { mut payload, came } if came + bytes == payload.len() => {
                self.headers(&mut payload);
                HeldPayload::Going { payload, gone: 0 }
            }
            HeldPayload::Coming { payload, came } => HeldPayload::Coming { payload, came: came + bytes },
            held @ (HeldPayload::Nothing | HeldPayload::Going { .. }) => held,
        };
    }

    /// Puts what was kept back, and is complete, into `into` as far as there is room; false if there is no such thing.
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

/// The header block in a payload of HEADERS, without what the flags put around it.
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
