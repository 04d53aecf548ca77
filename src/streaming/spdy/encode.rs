//! Encodes SPDY frames, with the compression state of one side.

use super::headers::Storer;
use super::{FIN, HEAD, Reason, VERSION, kind};

/// Encodes the control frames of one side of a connection, which must be sent in the order of
/// encoding.
#[derive(Debug, Default)]
pub struct Encoder {
    storer: Storer,
}

impl Encoder {
    pub fn open(&mut self, stream: u32, headers: &[(&str, &str)], fin: bool, to: &mut Vec<u8>) {
        // No associated stream, priority 0 (not used), no slot.
        let fixed = [&stream.to_be_bytes()[..], &[0; 6]].concat();
        self.with_headers(kind::SYN_STREAM, fin, &fixed, headers, to);
    }

    pub fn reply(&mut self, stream: u32, fin: bool, to: &mut Vec<u8>) {
        self.with_headers(kind::SYN_REPLY, fin, &stream.to_be_bytes(), &[], to);
    }

    fn with_headers(&mut self, kind: u16, fin: bool, fixed: &[u8], headers: &[(&str, &str)], to: &mut Vec<u8>) {
        let mut content = fixed.to_vec();
        self.storer.write(headers, &mut content);
        control(kind, if fin { FIN } else { 0 }, &content, to);
    }

    pub fn reset(stream: u32, reason: Reason, to: &mut Vec<u8>) {
        control(kind::RST_STREAM, 0, &two(stream, reason.code()), to);
    }

    pub fn ping(id: u32, to: &mut Vec<u8>) {
        control(kind::PING, 0, &id.to_be_bytes(), to);
    }

    /// Announces that no stream after `last` was accepted, with status OK.
    pub fn go_away(last: u32, to: &mut Vec<u8>) {
        control(kind::GOAWAY, 0, &two(last, 0), to);
    }

    pub fn window(stream: u32, more: u32, to: &mut Vec<u8>) {
        control(kind::WINDOW_UPDATE, 0, &two(stream, more), to);
    }
}

fn two(first: u32, second: u32) -> [u8; 8] {
    let mut both = [0; 8];
    both[..4].copy_from_slice(&first.to_be_bytes());
    both[4..].copy_from_slice(&second.to_be_bytes());
    both
}

fn control(kind: u16, flags: u8, content: &[u8], to: &mut Vec<u8>) {
    to.extend((0x8000 | VERSION).to_be_bytes());
    to.extend(kind.to_be_bytes());
    to.extend(flags_and_length(flags, content.len()));
    to.extend(content);
}

/// Returns the header of a data frame.
#[must_use]
pub fn data_head(stream: u32, fin: bool, length: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&stream.to_be_bytes());
    head[4..].copy_from_slice(&flags_and_length(if fin { FIN } else { 0 }, length));
    head
}

/// Lengths have 24 bits; all frames sent are much shorter.
fn flags_and_length(flags: u8, length: usize) -> [u8; 4] {
    debug_assert!(length < 1 << 24, "a frame of {length} bytes");
    let [_, a, b, c] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [flags, a, b, c]
}
