//! Mutations of seeds that random bit flips are unlikely to find.

const BLOCK: usize = 512;
/// Offset and width of the number fields of a tar header, then the range of the checksum.
const NUMBERS: [(usize, usize); 7] = [(100, 8), (108, 8), (116, 8), (124, 12), (136, 12), (329, 8), (337, 8)];
const CHECKSUM: std::ops::Range<usize> = 148..156;
const SIZE: std::ops::Range<usize> = 124..136;
const KIND: usize = 156;
const KINDS: &[u8] = b"\x0001234567SxgLKV";
const ODD_NUMBERS: [u64; 10] = [0, 1, 7, 511, 512, 513, 0o7777, 1 << 31, (1 << 32) - 1, (1 << 33) - 1];
const ODD_NAMES: [&[u8]; 20] = [
    b"f",
    b"d",
    b"d/g",
    b"d/e",
    b"d/e/x",
    b"s",
    b"s/g",
    b"out",
    b"out/file",
    b"abs/passwd",
    b"h",
    b"../x",
    b"/",
    b".",
    b".wh.f",
    b".wh..wh..opq",
    b"d/.wh.g",
    b"d/.wh..wh..opq",
    b".wh.",
    b"l1",
];

/// A pseudo-random number generator with reproducible results.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates a generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(mixed % bound).unwrap_or(0)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Returns a mutated tar stream; some mutations insert parts of `other`.
pub fn tar(stream: &[u8], other: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = stream.to_vec();
    for _ in 0..=dice.below(4) {
        match dice.below(8) {
            0 => flip(&mut bytes, dice),
            1 => bytes.truncate(dice.below(bytes.len() + 1)),
            2 => move_blocks(&mut bytes, stream, dice),
            3 => move_blocks(&mut bytes, other, dice),
            4 => {
                let (from, to) = blocks(&bytes, dice);
                bytes.drain(from..to);
            }
            5 => with_header(&mut bytes, dice, |header, dice| header[KIND] = *dice.pick(KINDS)),
            6 => with_header(&mut bytes, dice, edit_number),
            _ => with_header(&mut bytes, dice, edit_name),
        }
    }
    // Otherwise the parser would stop at the first changed header.
    if dice.below(16) > 0 {
        settle(&mut bytes);
    }
    bytes
}

/// Returns a mutated text; some mutations insert parts of `other`.
#[cfg(test)]
pub fn text(text: &[u8], other: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = text.to_vec();
    for _ in 0..=dice.below(3) {
        match dice.below(5) {
            0 => flip(&mut bytes, dice),
            1 => bytes.truncate(dice.below(bytes.len() + 1)),
            2 => {
                let from = dice.below(other.len());
                let part = &other[from..from + dice.below(other.len() - from + 1)];
                let at = dice.below(bytes.len() + 1);
                bytes.splice(at..at, part.iter().copied());
            }
            3 => {
                let from = dice.below(bytes.len());
                let to = from + dice.below(bytes.len() - from + 1);
                bytes.drain(from..to);
            }
            _ => {
                let words: [&[u8]; 8] =
                    [b"-1", b"18446744073709551616", b"null", b"{}", b"[]", b"\"\\u0000\"", b"1e999", b"\""];
                let at = dice.below(bytes.len() + 1);
                bytes.splice(at..at, dice.pick(&words).iter().copied());
            }
        }
    }
    bytes
}

fn flip(bytes: &mut [u8], dice: &mut Dice) {
    for _ in 0..=dice.below(4) {
        let (at, bit) = (dice.below(bytes.len()), dice.below(8));
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << bit;
        }
    }
}

/// Returns the range of up to four whole blocks.
fn blocks(bytes: &[u8], dice: &mut Dice) -> (usize, usize) {
    let count = bytes.len() / BLOCK;
    let from = dice.below(count);
    let to = (from + 1 + dice.below(4)).min(count);
    (from.min(to) * BLOCK, to * BLOCK)
}

fn move_blocks(bytes: &mut Vec<u8>, from: &[u8], dice: &mut Dice) {
    let (start, end) = blocks(from, dice);
    let at = dice.below(bytes.len() / BLOCK + 1) * BLOCK;
    bytes.splice(at..at, from[start..end].iter().copied());
}

fn with_header(bytes: &mut [u8], dice: &mut Dice, change: impl Fn(&mut [u8], &mut Dice)) {
    let headers = headers(bytes);
    if !headers.is_empty() {
        let at = *dice.pick(&headers);
        change(&mut bytes[at..at + BLOCK], dice);
    }
}

fn edit_number(header: &mut [u8], dice: &mut Dice) {
    let (at, width) = *dice.pick(&NUMBERS);
    let number = *dice.pick(&ODD_NUMBERS);
    let field = &mut header[at..at + width];
    match dice.below(4) {
        0 => field.fill(0xff),
        1 => {
            field.fill(0);
            field[0] = 0x80;
            field[width - 8..].iter_mut().zip(number.to_be_bytes()).for_each(|(to, from)| *to |= from);
        }
        _ => {
            let digits = format!("{number:0>width$o}", width = width - 1);
            field[..width - 1].copy_from_slice(&digits.as_bytes()[digits.len() - (width - 1)..]);
        }
    }
}

fn edit_name(header: &mut [u8], dice: &mut Dice) {
    let name = dice.pick(&ODD_NAMES);
    let at = *dice.pick(&[0, 157]);
    header[at..at + 100].fill(0);
    header[at..at + name.len()].copy_from_slice(name);
}

/// Returns the offsets of the headers, as a parser finds them.
fn headers(bytes: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + BLOCK) {
        if header.iter().all(|&byte| byte == 0) {
            break;
        }
        found.push(at);
        let digits = header[SIZE].iter().take_while(|byte| (b'0'..=b'7').contains(byte));
        let size = digits.fold(0usize, |sum, digit| sum * 8 + usize::from(digit - b'0'));
        let has_data = !(b'1'..=b'6').contains(&header[KIND]);
        at += BLOCK + if has_data { size.next_multiple_of(BLOCK) } else { 0 };
    }
    found
}

/// Sets the correct checksum of every header.
pub fn settle(bytes: &mut [u8]) {
    for at in headers(bytes) {
        let header = &mut bytes[at..at + BLOCK];
        header[CHECKSUM].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}
