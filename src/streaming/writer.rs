//! What goes out on a connection: bytes of streams as their senders bring them, and small frames in between.

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

/// Small frames that the other side makes us send and does not read: a connection with more of them is given up.
const PENDING_MAX: usize = 64 << 10;

pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

pub(crate) struct FrameWriter {
    io: tokio::sync::Mutex<Writer>,
    pending: Mutex<Pending>,
    /// Something is pending.
    due: Notify,
    /// Too much is.
    overflown: Notify,
    /// A frame was begun and not ended, or the connection was closed: nothing can follow.
    torn: AtomicBool,
    /// Frames of SPDY go into messages of WebSocket.
    tunnel: bool,
    clock: Arc<IdleTimer>,
    /// True once nobody reads what the client sends: then nobody writes either.
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

    /// Queues small frames of SPDY; they go out before whatever is sent after.
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

    /// Queues a small message of WebSocket.
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

    /// Sends small frames when nobody else sends anything. Ends when the connection is of no use any more.
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

    /// Sends what is pending, and then whole frames. Dropped halfway, it leaves a connection on which nothing can follow.
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
        // Buffers of TLS are nobody else's to empty.
        io.flush().await.map_err(|_| StreamError::Lost)?;
        self.clock.touch();
        self.torn.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Sends what is pending and says that nothing follows.
    pub(crate) async fn close(&self) {
        if self.send(&[]).await.is_ok() {
            let mut io = self.io.lock().await;
            self.torn.store(true, Ordering::Relaxed);
            // Whoever is gone needs no goodbye.
            io.shutdown().await.ok();
        }
    }
}
