//! Received bytes of a stream that are not read yet: limited by blocking the connection.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, MutexGuard};

use bytes::Bytes;
use sync::Mutex;
use tokio::sync::Notify;

use crate::spdy::WINDOW;

/// A stream with more buffered bytes blocks its connection.
pub(crate) const STREAM_ROOM: usize = 256 << 10;
/// The same limit for all streams of a connection together.
pub(crate) const CONNECTION_ROOM: usize = 4 << 20;

/// The stream ended abnormally.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("the client of an exec, attach or port-forward aborted a stream (SPDY RST_STREAM)")]
    Reset,
    #[error("the connection to the client of an exec, attach or port-forward was closed")]
    Lost,
}

/// The buffered bytes of a connection.
#[derive(Debug, Default)]
pub(crate) struct BufferBudget {
    held: Mutex<usize>,
    taken: Notify,
}

impl BufferBudget {
    fn held(&self) -> MutexGuard<'_, usize> {
        self.held.lock()
    }

    /// Waits until the stream and the connection are below their limits.
    pub(crate) async fn room(&self, recv_buffer: &RecvBuffer) {
        loop {
            let taken = self.taken.notified();
            if recv_buffer.has_room() && *self.held() < CONNECTION_ROOM {
                return;
            }
            taken.await;
        }
    }

    fn release(&self, bytes: usize) {
        if bytes > 0 {
            let mut held = self.held();
            *held = held.saturating_sub(bytes);
        }
        // Only the connection's task waits.
        self.taken.notify_one();
    }
}

/// The receive buffer of one stream.
pub(crate) struct RecvBuffer {
    budget: Arc<BufferBudget>,
    state: Mutex<State>,
    arrived: Notify,
    /// Called with the number of bytes read, from time to time, to let the client send as many
    /// again.
    on_read: Box<dyn Fn(u32) + Send + Sync>,
}

/// The number of bytes read after which `on_read` is called.
const TELL_READ: u32 = WINDOW / 2;

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    end: Option<Result<(), StreamError>>,
    /// The reader was dropped: new bytes are discarded.
    abandoned: bool,
    /// Bytes read since the last call of `on_read`.
    read: u32,
}

impl fmt::Debug for RecvBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("state", &self.state).finish_non_exhaustive()
    }
}

impl RecvBuffer {
    pub(crate) fn new(budget: Arc<BufferBudget>) -> Arc<Self> {
        Self::with_on_read(budget, |_| {})
    }

    pub(crate) fn with_on_read(budget: Arc<BufferBudget>, on_read: impl Fn(u32) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { budget, state: Mutex::default(), arrived: Notify::new(), on_read: Box::new(on_read) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn put(&self, bytes: Bytes) {
        let mut state = self.state();
        if state.abandoned {
            self.count(state, bytes.len());
        } else if state.end.is_none() && !bytes.is_empty() {
            *self.budget.held() += bytes.len();
            state.bytes += bytes.len();
            state.waiting.push_back(bytes);
            self.arrived.notify_one();
        }
    }

    /// Ends the stream after the buffered bytes. Only the first end counts, but an error replaces a
    /// normal end.
    pub(crate) fn end(&self, end: Result<(), StreamError>) {
        let mut state = self.state();
        if state.end.is_none_or(|earlier| earlier.is_ok() && end.is_err()) {
            state.end = Some(end);
        }
        self.arrived.notify_one();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state().end.is_some()
    }

    fn has_room(&self) -> bool {
        self.state().bytes < STREAM_ROOM
    }

    fn count(&self, mut state: MutexGuard<'_, State>, bytes: usize) {
        state.read = state.read.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if state.read >= TELL_READ && state.end.is_none() {
            let read = std::mem::take(&mut state.read);
            drop(state);
            (self.on_read)(read);
        }
    }

    fn take(&self, most: usize) -> Option<Result<VecDeque<Bytes>, StreamError>> {
        let mut state = self.state();
        if state.waiting.is_empty() {
            return state.end.map(|end| end.map(|()| VecDeque::new()));
        }
        let taken = if state.waiting.len() > most {
            state.waiting.drain(..most).collect()
        } else {
            std::mem::take(&mut state.waiting)
        };
        let bytes = taken.iter().map(Bytes::len).sum();
        state.bytes -= bytes;
        self.count(state, bytes);
        self.budget.release(bytes);
        Some(Ok(taken))
    }

    fn abandon(&self) {
        let mut state = self.state();
        state.abandoned = true;
        state.waiting = VecDeque::new();
        let bytes = std::mem::take(&mut state.bytes);
        self.count(state, bytes);
        self.budget.release(bytes);
    }
}

/// The bytes that the client writes to one stream.
#[derive(Debug)]
pub struct RecvStream(pub(crate) Arc<RecvBuffer>);

impl RecvStream {
    /// Returns the next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StreamError> {
        Ok(self.next_pieces(1).await?.pop_front())
    }

    /// Returns the buffered bytes, at most `most` pieces; empty at the end.
    pub async fn next_pieces(&mut self, most: usize) -> Result<VecDeque<Bytes>, StreamError> {
        loop {
            // A notification in between is kept, and there is only one reader.
            if let Some(taken) = self.0.take(most) {
                return taken;
            }
            self.0.arrived.notified().await;
        }
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn waits(work: impl Future<Output = ()>) -> bool {
        tokio::time::timeout(Duration::from_millis(20), work).await.is_err()
    }

    #[tokio::test]
    async fn bytes_are_read_in_order_and_before_the_end() {
        let recv_buffer = RecvBuffer::new(Arc::default());
        let mut input = RecvStream(recv_buffer.clone());
        recv_buffer.put(Bytes::from_static(b"one"));
        recv_buffer.put(Bytes::from_static(b"two"));
        recv_buffer.end(Ok(()));
        recv_buffer.put(Bytes::from_static(b"after the end"));
        assert_eq!(input.next().await, Ok(Some(Bytes::from_static(b"one"))));
        assert_eq!(input.next().await, Ok(Some(Bytes::from_static(b"two"))));
        assert_eq!(input.next().await, Ok(None));
        recv_buffer.end(Err(StreamError::Reset));
        assert_eq!(input.next().await, Err(StreamError::Reset), "an error replaces a normal end");
        recv_buffer.end(Ok(()));
        assert_eq!(input.next().await, Err(StreamError::Reset));
    }

    #[tokio::test]
    async fn a_full_stream_blocks_its_connection_until_it_is_read_or_dropped() {
        let budget: Arc<BufferBudget> = Arc::default();
        let recv_buffer = RecvBuffer::new(budget.clone());
        let mut input = RecvStream(recv_buffer.clone());
        assert!(!waits(budget.room(&recv_buffer)).await);
        recv_buffer.put(vec![0; STREAM_ROOM].into());
        assert!(waits(budget.room(&recv_buffer)).await);
        input.next().await.unwrap();
        assert!(!waits(budget.room(&recv_buffer)).await);
        recv_buffer.put(vec![0; STREAM_ROOM].into());
        drop(input);
        assert!(!waits(budget.room(&recv_buffer)).await);
        recv_buffer.put(vec![0; STREAM_ROOM].into());
        assert!(!waits(budget.room(&recv_buffer)).await, "bytes without a reader are discarded");
        assert_eq!(*budget.held(), 0);
    }

    #[tokio::test]
    async fn all_streams_together_are_limited_too() {
        let budget: Arc<BufferBudget> = Arc::default();
        let inboxes: Vec<_> = (0..=CONNECTION_ROOM / STREAM_ROOM).map(|_| RecvBuffer::new(budget.clone())).collect();
        inboxes.iter().for_each(|recv_buffer| recv_buffer.put(vec![0; STREAM_ROOM - 1].into()));
        let last = RecvBuffer::new(budget.clone());
        assert!(!waits(budget.room(&last)).await || *budget.held() >= CONNECTION_ROOM);
        inboxes[0].put(vec![0; STREAM_ROOM].into());
        assert!(waits(budget.room(&last)).await);
    }
}
