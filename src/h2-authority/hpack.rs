//! Finds `:authority` in an HPACK header block (RFC 7541) and rewrites its value.

use std::ops::Range;

/// The index of `:authority` in the static table.
const STATIC_INDEX: usize = 1;
/// The name as a literal, as gRPC's C core sends it.
const NAME: &[u8] = b":authority";
/// The name in Huffman code, whose encoding is unique.
const NAME_IN_HUFFMAN: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// The length of the codes of `%`, `/` and `-`, in bits.
const SIX: usize = 6;
const PERCENT: u32 = 0b01_0101;
const SLASH: u32 = 0b01_1000;
const DASH: u32 = 0b01_0110;
/// The last code of each length in bits. Codes increase with their length, so the length of a code
/// is the first whose last code is not smaller.
const LAST_CODES: [(usize, u32); 10] = [
    (5, 0x09),
    (6, 0x2d),
    (7, 0x7b),
    (8, 0xfd),
    (10, 0x3fc),
    (11, 0x7fc),
    (12, 0xffb),
    (13, 0x1ffd),
    (14, 0x3ffd),
    (15, 0x7ffe),
];

/// Replaces each `%` and `/` by `-` in literal values of `:authority`; no length changes.
///
/// From a field that cannot be parsed on, the rest stays unchanged. So does a value whose name is
/// an index of the dynamic table, which is not tracked here.
pub(super) fn rewrite_authority(block: &mut [u8]) {
    let mut walk = Walk { block, at: 0 };
    // Each field has at least one byte, so this terminates.
    while walk.field().is_some() {}
}

/// A parser of a header block; every step returns `None` if the block ends too early or is
/// malformed.
struct Walk<'a> {
    block: &'a mut [u8],
    at: usize,
}

/// A string in a header block.
struct Text {
    huffman: bool,
    range: Range<usize>,
}

impl Walk<'_> {
    /// Parses one field, and rewrites it if it is `:authority`.
    fn field(&mut self) -> Option<()> {
        let is_authority = match *self.block.get(self.at)? {
            // An indexed field, or a size update of the dynamic table.
            0x80.. => return self.integer(7).map(drop),
            0x20..=0x3f => return self.integer(5).map(drop),
            // A literal value, with and without indexing.
            0x40..=0x7f => self.name(6)?,
            0x00..=0x1f => self.name(4)?,
        };
        let Text { huffman, range } = self.text()?;
        if is_authority {
            let value = self.block.get_mut(range)?;
            if huffman { rewrite_huffman(value) } else { rewrite_plain(value) }
        }
        Some(())
    }

    /// Parses the name of a field, whose index has `bits` bits in its first byte; returns whether
    /// it is `:authority`.
    fn name(&mut self, bits: u32) -> Option<bool> {
        match self.integer(bits)? {
            0 => {
                let Text { huffman, range } = self.text()?;
                Some(self.block.get(range)? == if huffman { NAME_IN_HUFFMAN } else { NAME })
            }
            index => Some(index == STATIC_INDEX),
        }
    }

    fn text(&mut self) -> Option<Text> {
        let huffman = *self.block.get(self.at)? & 0x80 != 0;
        let length = self.integer(7)?;
        let range = self.at..self.at + length;
        self.at = range.end;
        (range.end <= self.block.len()).then_some(Text { huffman, range })
    }

    /// Parses an integer that begins in the lower `bits` of a byte; at most five bytes, as in h2.
    fn integer(&mut self, bits: u32) -> Option<usize> {
        let most = 0xff_usize >> (8 - bits);
        let first = usize::from(self.byte()?) & most;
        if first < most {
            return Some(first);
        }
        let mut number = most;
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.block.get(self.at).copied();
        self.at += 1;
        byte
    }
}

fn rewrite_plain(value: &mut [u8]) {
    for byte in value.iter_mut().filter(|byte| matches!(byte, b'%' | b'/')) {
        *byte = b'-';
    }
}

fn rewrite_huffman(value: &mut [u8]) {
    let mut at = 0;
    while let Some((length, code)) = code_at(value, at) {
        if length == SIX && matches!(code, PERCENT | SLASH) {
            // The difference of the two codes, at its position in up to two bytes.
            let change = ((code ^ DASH) << (32 - SIX - at % 8)).to_be_bytes();
            for (byte, change) in value.iter_mut().skip(at / 8).zip(change) {
                *byte ^= change;
            }
        }
        at += length;
    }
}

/// Returns length and value of the code that begins at a bit; `None` for the padding at the end.
fn code_at(value: &[u8], at: usize) -> Option<(usize, u32)> {
    let byte = |n: usize| value.get(at / 8 + n).copied().unwrap_or(0xff);
    let ahead = u32::from_be_bytes([byte(0), byte(1), byte(2), 0]) << (at % 8);
    let code = |length: usize| ahead >> (32 - length);
    let (length, _) = LAST_CODES.into_iter().find(|&(length, last)| code(length) <= last)?;
    (at + length <= value.len() * 8).then(|| (length, code(length)))
}

#[cfg(test)]
#[path = "hpack_tests.rs"]
mod tests;
