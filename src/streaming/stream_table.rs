//! The open streams of a connection.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use bytes::Bytes;
use sync::Mutex;

use crate::recv_buffer::{RecvBuffer, StreamError};

#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    open: Mutex<HashMap<u32, Stream>>,
}

#[derive(Debug)]
struct Stream {
    recv_buffer: Arc<RecvBuffer>,
    /// Our side is closed.
    finished: bool,
    /// The client's side is closed.
    input_ended: bool,
}

impl StreamTable {
    fn open(&self) -> MutexGuard<'_, HashMap<u32, Stream>> {
        self.open.lock()
    }

    pub(crate) fn len(&self) -> usize {
        self.open().len()
    }

    pub(crate) fn add(&self, id: u32, recv_buffer: Arc<RecvBuffer>) {
        self.open().insert(id, Stream { recv_buffer, finished: false, input_ended: false });
    }

    /// Passes bytes to the reader of a stream, and returns its buffer to check its limit. Bytes for
    /// unknown streams are dropped.
    pub(crate) fn put(&self, id: u32, bytes: Bytes, fin: bool) -> Option<Arc<RecvBuffer>> {
        let mut open = self.open();
        let stream = open.get_mut(&id)?;
        let recv_buffer = stream.recv_buffer.clone();
        if stream.input_ended {
            return None;
        }
        if fin {
            stream.input_ended = true;
            if stream.finished {
                open.remove(&id);
            }
        }
        drop(open);
        recv_buffer.put(bytes);
        if fin {
            recv_buffer.end(Ok(()));
        }
        Some(recv_buffer)
    }

    /// Closes our side of a stream; returns false if it is not open.
    pub(crate) fn finish(&self, id: u32) -> bool {
        let mut open = self.open();
        let Some(stream) = open.get_mut(&id) else { return false };
        stream.finished = true;
        if stream.input_ended {
            open.remove(&id);
        }
        true
    }

    /// Closes a stream in both directions; returns false if it is not open.
    pub(crate) fn cut(&self, id: u32) -> bool {
        let stream = self.open().remove(&id);
        stream.is_some_and(|stream| {
            stream.recv_buffer.end(Err(StreamError::Reset));
            true
        })
    }

    /// Ends all streams after the connection was lost, except those that had ended before.
    pub(crate) fn lose(&self) {
        for (_, stream) in self.open().drain().filter(|(_, stream)| !stream.input_ended) {
            stream.recv_buffer.end(Err(StreamError::Lost));
        }
    }
}
