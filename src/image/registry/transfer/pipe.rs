//! A pipe of limited size between the network and an unpacker.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Arc, MutexGuard};

use sync::{Condvar, Mutex};
use tokio::sync::Notify;

/// Creates a pipe of `capacity` bytes, which allocates its memory once.
pub(crate) fn pipe(capacity: usize) -> (PipeWriter, PipeReader) {
    let held = RingState { bytes: VecDeque::with_capacity(capacity), filled_to_the_end: false, read_no_more: false };
    let ring = Arc::new(Ring { capacity, held: Mutex::new(held), filled: Condvar::new(), emptied: Notify::new() });
    (PipeWriter(ring.clone()), PipeReader(ring))
}

#[derive(Debug)]
struct Ring {
    capacity: usize,
    held: Mutex<RingState>,
    filled: Condvar,
    emptied: Notify,
}

#[derive(Debug)]
struct RingState {
    bytes: VecDeque<u8>,
    filled_to_the_end: bool,
    read_no_more: bool,
}

impl Ring {
    fn held(&self) -> MutexGuard<'_, RingState> {
        self.held.lock()
    }
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct PipeWriter(Arc<Ring>);

/// The reading end, for a blocking thread; dropping it closes the pipe.
#[derive(Debug)]
pub(crate) struct PipeReader(Arc<Ring>);

impl PipeWriter {
    /// Writes `bytes` into the pipe as space becomes free; returns false if the reader was dropped.
    ///
    /// The bytes are copied: a piece is a slice of the HTTP client's buffer, which cannot be reused
    /// while the slice is alive.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        loop {
            match self.put(rest) {
                None => return false,
                Some(count) => rest = &rest[count..],
            }
            if rest.is_empty() {
                return true;
            }
            self.0.emptied.notified().await;
        }
    }

    /// Writes as much as fits; returns `None` if the reader was dropped.
    fn put(&self, bytes: &[u8]) -> Option<usize> {
        let mut held = self.0.held();
        if held.read_no_more {
            return None;
        }
        let count = bytes.len().min(self.0.capacity - held.bytes.len());
        held.bytes.extend(&bytes[..count]);
        self.0.filled.notify_one();
        Some(count)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.held().read_no_more
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.0.held().filled_to_the_end = true;
        self.0.filled.notify_one();
    }
}

impl Read for PipeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ring = &self.0;
        let waits = |held: &mut RingState| held.bytes.is_empty() && !held.filled_to_the_end;
        let mut held = ring.filled.wait_while(ring.held(), waits);
        let count = held.bytes.read(buffer)?;
        // Not for every byte: waking the writer costs more than letting it wait.
        if held.bytes.len() <= ring.capacity / 2 {
            ring.emptied.notify_one();
        }
        Ok(count)
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        self.0.held().read_no_more = true;
        self.0.emptied.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Sends pieces until the pipe is full, and returns their number.
    async fn fill(writer: &mut PipeWriter, piece: &[u8]) -> usize {
        let mut count = 0;
        while tokio::time::timeout(Duration::from_millis(50), writer.send(piece)).await.is_ok() {
            count += 1;
        }
        count
    }

    #[tokio::test]
    async fn a_full_pipe_blocks_for_every_size_of_pieces() {
        let (mut writer, reader) = pipe(64 << 10);
        assert_eq!(fill(&mut writer, &[0; 16 << 10]).await, 4);
        assert_eq!(reader.0.held().bytes.capacity(), 64 << 10);
        let (mut writer, _outlet) = pipe(64 << 10);
        assert_eq!(fill(&mut writer, b"x").await, 64 << 10);
        let (mut writer, reader) = pipe(64 << 10);
        assert_eq!(fill(&mut writer, &[0; 100 << 10]).await, 0);
        assert_eq!(reader.0.held().bytes.len(), 64 << 10);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn bytes_are_read_in_order_and_free_their_space() {
        let (mut writer, mut reader) = pipe(1000);
        let reading = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        let mut wanted = Vec::new();
        for size in [1, 0, 999, 5000, 3, 700, 700, 1] {
            let piece = vec![u8::try_from(size % 251).unwrap(); size];
            wanted.extend_from_slice(&piece);
            assert!(writer.send(&piece).await);
        }
        drop(writer);
        assert_eq!(reading.await.unwrap().unwrap(), wanted);
    }

    #[tokio::test]
    async fn a_blocked_sender_returns_when_the_reader_is_dropped() {
        let (mut writer, reader) = pipe(1000);
        assert!(writer.send(&[0; 1000]).await);
        let (sent, ()) = tokio::join!(writer.send(&[0; 1000]), async move { drop(reader) });
        assert!(!sent && writer.is_closed());
    }
}
