//! The pipe between the network and an unpacker, bounded by bytes.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use tokio::sync::{Semaphore, mpsc};

use crate::layer::unpack::Limits;

/// A piece counts for at least this much, so that a flood of tiny ones, each with its own cost, is bounded too.
const PIECE_MIN: usize = 512;
const CAPACITY_MIN: u64 = 16 << 10;
const CAPACITY_MAX: u64 = 1 << 20;

impl Limits {
    /// The bytes that one layer may use between network and disk, its decoder's window included.
    pub fn share(&self) -> u64 {
        self.memory_bytes / u64::try_from(self.downloads.max(1)).unwrap_or(u64::MAX)
    }

    /// The bytes that the pipe of one layer may hold; most of the share is the decoder's.
    pub(crate) fn pipe(&self) -> usize {
        usize::try_from((self.share() / 4).clamp(CAPACITY_MIN, CAPACITY_MAX)).unwrap_or(PIECE_MIN)
    }
}

/// A pipe that holds `capacity` bytes.
pub(crate) fn pipe(capacity: usize) -> (Inlet, Outlet) {
    let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
    let room = Arc::new(Semaphore::new(usize::try_from(capacity).unwrap_or(0)));
    let (sender, receiver) = mpsc::unbounded_channel();
    (Inlet { pieces: sender, room: room.clone(), capacity }, Outlet { pieces: receiver, room, piece: Piece::default() })
}

/// Bytes, and the room they take.
#[derive(Debug, Default)]
struct Piece {
    bytes: Bytes,
    room: u32,
}

/// The end that is filled.
#[derive(Debug)]
pub(crate) struct Inlet {
    pieces: mpsc::UnboundedSender<Piece>,
    room: Arc<Semaphore>,
    capacity: u32,
}

/// The end that is read on a thread that may block; dropped, it closes the pipe.
#[derive(Debug)]
pub(crate) struct Outlet {
    pieces: mpsc::UnboundedReceiver<Piece>,
    room: Arc<Semaphore>,
    piece: Piece,
}

impl Inlet {
    /// Waits for room and puts `bytes` into it; false if nobody reads any more.
    pub(crate) async fn send(&self, bytes: Bytes) -> bool {
        // A piece larger than the pipe goes alone.
        let room = u32::try_from(bytes.len().max(PIECE_MIN)).unwrap_or(u32::MAX).min(self.capacity);
        let Ok(taken) = self.room.acquire_many(room).await else { return false };
        taken.forget();
        self.pieces.send(Piece { bytes, room }).is_ok()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.pieces.is_closed()
    }
}

impl Read for Outlet {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.bytes.is_empty() {
            self.room.add_permits(usize::try_from(std::mem::take(&mut self.piece).room).unwrap_or(0));
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.piece.bytes.len());
        self.piece.bytes.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.pieces.close();
        self.room.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Sends pieces until there is no room, and says how many there were.
    async fn fill(inlet: &Inlet, piece: &'static [u8]) -> usize {
        let mut count = 0;
        while tokio::time::timeout(Duration::from_millis(50), inlet.send(Bytes::from_static(piece))).await.is_ok() {
            count += 1;
        }
        count
    }

    #[tokio::test]
    async fn a_full_pipe_waits_whatever_the_size_of_its_pieces() {
        let (inlet, _outlet) = pipe(64 << 10);
        assert_eq!(fill(&inlet, &[0; 16 << 10]).await, 4);
        let (inlet, _outlet) = pipe(64 << 10);
        assert_eq!(fill(&inlet, b"x").await, (64 << 10) / PIECE_MIN);
        let (inlet, _outlet) = pipe(64 << 10);
        assert_eq!(fill(&inlet, &[0; 100 << 10]).await, 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_sent_is_read_in_order_and_makes_room() {
        let (inlet, mut outlet) = pipe(1000);
        let reading = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            outlet.read_to_end(&mut all).map(|_| all)
        });
        let mut wanted = Vec::new();
        for size in [1, 0, 999, 5000, 3, 700, 700, 1] {
            let piece = vec![u8::try_from(size % 251).unwrap(); size];
            wanted.extend_from_slice(&piece);
            assert!(inlet.send(piece.into()).await);
        }
        drop(inlet);
        assert_eq!(reading.await.unwrap().unwrap(), wanted);
    }

    #[tokio::test]
    async fn a_sender_that_waits_for_room_learns_that_nobody_reads() {
        let (inlet, outlet) = pipe(1000);
        assert!(inlet.send(vec![0; 1000].into()).await);
        let (sent, ()) = tokio::join!(inlet.send(vec![0; 1000].into()), async move { drop(outlet) });
        assert!(!sent && inlet.is_closed());
    }

    #[test]
    fn a_layer_has_its_share_of_the_memory_and_a_pipe_a_quarter_of_that_at_most() {
        let limits = |memory_bytes, downloads| Limits { memory_bytes, downloads, ..Limits::default() };
        assert_eq!(limits(128 << 20, 4).share(), 32 << 20);
        assert_eq!(limits(128 << 20, 4).pipe(), 1 << 20);
        assert_eq!(limits(1 << 20, 2).pipe(), 128 << 10);
        assert_eq!(limits(0, 0).pipe(), 16 << 10);
    }
}
