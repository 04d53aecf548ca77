//! Encodes messages, each as one frame.

use super::decode::unmask;

/// Types of frames.
pub(super) const CONTINUATION: u8 = 0;
pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// The maximum header length of a frame without mask.
pub const HEAD_MAX: usize = 10;

/// Returns the header for `length` bytes of a server, and its length.
#[must_use]
pub fn head(kind: u8, length: usize) -> ([u8; HEAD_MAX], usize) {
    let mut head = [0; HEAD_MAX];
    head[0] = 0x80 | kind;
    let size = match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..=125), _) => {
            head[1] = short;
            2
        }
        (_, Ok(middle)) => {
            head[1] = 126;
            head[2..4].copy_from_slice(&middle.to_be_bytes());
            4
        }
        _ => {
            head[1] = 127;
            head[2..].copy_from_slice(&(length as u64).to_be_bytes());
            HEAD_MAX
        }
    };
    (head, size)
}

/// Appends a whole frame of a server.
pub fn frame(kind: u8, content: &[u8], to: &mut Vec<u8>) {
    let (head, size) = head(kind, content.len());
    to.extend(&head[..size]);
    to.extend(content);
}

/// Appends a whole frame of a client.
pub fn masked_frame(kind: u8, content: &[u8], mask: [u8; 4], to: &mut Vec<u8>) {
    let (mut head, size) = head(kind, content.len());
    head[1] |= 0x80;
    to.extend(&head[..size]);
    to.extend(mask);
    let at = to.len();
    to.extend(content);
    unmask(&mut to[at..], mask, 0);
}
