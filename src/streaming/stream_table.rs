//! The streams of a connection that are open.

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
    /// We will not write any more.
    finished: bool,
    /// The client will not write any more.
    heard_out: bool,
}

impl StreamTable {
    fn open(&self) -> MutexGuard<'_, HashMap<u32, Stream>> {
        self.open.lock()
    }

    pub(crate) fn len(&self) -> usize {
        self.open().len()
    }

    pub(crate) fn add(&self, id: u32, recv_buffer: Arc<RecvBuffer>) {
        self.open().insert(id, Stream { recv_buffer, finished: false, heard_out: false });
    }

    /// Hands bytes to the reader of a stream, and its inbox back, to see whether it has room. Those for no stream are dropped.
    pub(crate) fn put(&self, id: u32, bytes: Bytes, fin: bool) -> Option<Arc<RecvBuffer>> {
        let mut open = self.open();
        let stream = open.get_mut(&id)?;
        let recv_buffer = stream.recv_buffer.clone();
        if stream.heard_out {
            return None;
        }
        if fin {
            stream.heard_out = true;
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

    /// Notes that we will not write to a stream; false if it is gone already.
    pub(crate) fn finish(&self, id: u32) -> bool {
        let mut open = self.open();
        let Some(stream) = open.get_mut(&id) else { return false };
        stream.finished = true;
        if stream.heard_out {
            open.remove(&id);
        }
        true
    }

    /// Ends a stream in both directions; false if it is gone already.
    pub(crate) fn cut(&self, id: u32) -> bool {
        let stream = self.open().remove(&id);
        stream.is_some_and(|stream| {
            stream.recv_buffer.end(Err(StreamError::Reset));
            true
        })
    }

    /// The connection ended. What had its end before keeps it.
    pub(crate) fn lose(&self) {
        for (_, stream) in self.open().drain().filter(|(_, stream)| !stream.heard_out) {
            stream.recv_buffer.end(Err(StreamError::Lost));
        }
    }
}
