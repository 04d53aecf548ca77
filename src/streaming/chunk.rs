//! A buffer for bytes to a client, with space for the headers of every transport.

use crate::{spdy, ws};

/// Space for a message header, a frame header and a channel number.
pub(crate) const HEADROOM: usize = ws::HEAD_MAX + spdy::HEAD + 1;

/// A reusable buffer. Its bytes are never moved.
#[derive(Debug)]
pub struct Chunk {
    buffer: Vec<u8>,
    length: usize,
}

impl Chunk {
    /// Creates a chunk with space for `room` bytes.
    #[must_use]
    pub fn with_room(room: usize) -> Self {
        Self { buffer: vec![0; HEADROOM + room], length: 0 }
    }

    /// Creates a chunk with these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut chunk = Self::with_room(bytes.len());
        chunk.room().copy_from_slice(bytes);
        chunk.fill(bytes.len());
        chunk
    }

    /// Returns the space for bytes; [`Chunk::fill`] then sets their number.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[HEADROOM..]
    }

    /// Returns the same space with one byte before it, which is not sent: for records that begin
    /// with a type.
    pub fn tagged_room(&mut self) -> &mut [u8] {
        &mut self.buffer[HEADROOM - 1..]
    }

    /// Sets the number of valid bytes.
    pub fn fill(&mut self, length: usize) {
        self.length = length.min(self.buffer.len() - HEADROOM);
    }

    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[HEADROOM..HEADROOM + self.length]
    }

    /// Returns `length` bytes at `from`, preceded by `heads`. Overwrites the bytes before, which
    /// were sent already.
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
