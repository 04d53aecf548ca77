//! Writes to a connection: data frames of streams, and control frames in between.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use sync::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, watch};

use crate::idle_timer::IdleTimer;
use crate::recv_buffer::StreamError;
use crate::send_window::SendWindow;
use crate::{spdy, ws};

/// Limit for queued control frames that the other side causes and does not read, in bytes; above it
/// the connection is closed.
const PENDING_MAX: usize = 64 << 10;

pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

pub(crate) struct FrameWriter {
    io: tokio::sync::Mutex<Writer>,
    pending: Mutex<Pending>,
    /// Control frames are queued.
    due: Notify,
    /// The limit is exceeded.
    overflown: Notify,
    /// A frame was written in part, or the connection was closed: nothing can follow.
    torn: AtomicBool,
    /// SPDY frames are wrapped in WebSocket messages.
    tunnel: bool,
    clock: Arc<IdleTimer>,
    /// True once the session no longer reads from the client: then writes fail, too.
    gone: watch::Receiver<bool>,
    pub(crate) window: SendWindow,
}

#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    encoder: spdy::Encoder,
}

impl fmt::Debug for FrameWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").field("tunnel", &self.tunnel).field("torn", &self.torn).finish_non_exhaustive()
    }
}

impl FrameWriter {
    pub(crate) fn new(io: Writer, tunnel: bool, clock: Arc<IdleTimer>, gone: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Self {
            io: tokio::sync::Mutex::new(io),
            pending: Mutex::default(),
            due: Notify::new(),
            overflown: Notify::new(),
            torn: AtomicBool::new(false),
            tunnel,
            clock,
            gone,
            window: SendWindow::default(),
        })
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock()
    }

    pub(crate) fn is_tunnel(&self) -> bool {
        self.tunnel
    }

    /// Queues SPDY control frames; they are sent before all later frames.
    pub(crate) fn send_control(&self, frames: impl FnOnce(&mut spdy::Encoder, &mut Vec<u8>)) {
        self.queue(|pending| {
            if self.tunnel {
                let mut inner = Vec::new();
                frames(&mut pending.encoder, &mut inner);
                ws::frame(ws::BINARY, &inner, &mut pending.bytes);
            } else {
                frames(&mut pending.encoder, &mut pending.bytes);
            }
        });
    }

    /// Queues a WebSocket control message.
    pub(crate) fn message(&self, kind: u8, content: &[u8]) {
        self.queue(|pending| ws::frame(kind, content, &mut pending.bytes));
    }

    fn queue(&self, add: impl FnOnce(&mut Pending)) {
        let mut pending = self.pending();
        if pending.bytes.len() > PENDING_MAX {
            self.overflown.notify_one();
        } else {
            add(&mut pending);
        }
        drop(pending);
        self.due.notify_one();
    }

    /// Sends queued control frames while no data is sent. Ends when the connection is closed.
    pub(crate) async fn flush_on(&self) {
        let flush = async {
            loop {
                self.due.notified().await;
                if self.send(&[]).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = flush => {}
            () = self.overflown.notified() => {}
        }
    }

    /// Sends queued control frames, then `frames`. If it is dropped before the end, nothing more
    /// can be sent on the connection.
    pub(crate) async fn send(&self, frames: &[u8]) -> Result<(), StreamError> {
        let mut gone = self.gone.clone();
        tokio::select! {
            sent = self.write(frames) => sent,
            _ = gone.wait_for(|gone| *gone) => Err(StreamError::Lost),
        }
    }

    async fn write(&self, frames: &[u8]) -> Result<(), StreamError> {
        let mut io = self.io.lock().await;
        if self.torn.swap(true, Ordering::Relaxed) {
            return Err(StreamError::Lost);
        }
        let pending = std::mem::take(&mut self.pending().bytes);
        for part in [&pending[..], frames] {
            if !part.is_empty() {
                io.write_all(part).await.map_err(|_| StreamError::Lost)?;
            }
        }
        // TLS buffers data, so flush it.
        io.flush().await.map_err(|_| StreamError::Lost)?;
        self.clock.touch();
        self.torn.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Sends queued control frames and closes the sending side.
    pub(crate) async fn close(&self) {
        if self.send(&[]).await.is_ok() {
            let mut io = self.io.lock().await;
            self.torn.store(true, Ordering::Relaxed);
            // The client may have disconnected.
            io.shutdown().await.ok();
        }
    }
}
