//! Bytes on their way to a client, with room before them for what every transport puts there.

use crate::{spdy, ws};

/// A message's head, a frame's head in it, and the number of a channel.
pub(crate) const HEADROOM: usize = ws::HEAD_MAX + spdy::HEAD + 1;

/// A buffer that is filled, sent, and filled again. Bytes are never moved in it.
#[derive(Debug)]
pub struct Chunk {
    buffer: Vec<u8>,
    length: usize,
}

impl Chunk {
    /// With room for so many bytes.
    #[must_use]
    pub fn with_room(room: usize) -> Self {
        Self { buffer: vec![0; HEADROOM + room], length: 0 }
    }

    /// One with these bytes in it.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut chunk = Self::with_room(bytes.len());
        chunk.room().copy_from_slice(bytes);
        chunk.fill(bytes.len());
        chunk
    }

    /// Where bytes are put, before [`Chunk::fill`] says how many.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[HEADROOM..]
    }

    /// The same with one byte before it, which is not sent: for messages that begin with what they are.
    pub fn tagged_room(&mut self) -> &mut [u8] {
        &mut self.buffer[HEADROOM - 1..]
    }

    /// Says that the first `length` bytes count.
    pub fn fill(&mut self, length: usize) {
        self.length = length.min(self.buffer.len() - HEADROOM);
    }

    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[HEADROOM..HEADROOM + self.length]
    }

    /// `length` bytes from `from` on, with `head` before them. Overwrites what is before: it was sent already.
    pub(crate) fn framed(&mut self, from: usize, length: usize, heads: &[&[u8]]) -> &[u8] {
        let end = HEADROOM + from;
        let mut start = end;
        for head in heads.iter().rev() {
            self.buffer[start - head.len()..start].copy_from_slice(head);
            start -= head.len();
        }
        &self.buffer[start..end + length]
    }
}
