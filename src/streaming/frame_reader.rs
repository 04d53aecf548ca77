//! Reads the bytes of a connection, unwrapped from WebSocket messages if it is a tunnel.

use std::sync::Arc;
use std::{fmt, io};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::idle_timer::IdleTimer;
use crate::writer::FrameWriter;
use crate::ws;

/// The read size, initially and for large amounts.
const READ_LEAST: usize = 8 << 10;
const READ_MOST: usize = 128 << 10;

pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;

pub(crate) struct FrameReader {
    io: Reader,
    clock: Arc<IdleTimer>,
    size: usize,
}

impl fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl FrameReader {
    pub(crate) fn new(io: Reader, clock: Arc<IdleTimer>) -> Self {
        Self { io, clock, size: READ_LEAST }
    }

    /// Appends the next bytes to `buffer`; returns false at the end.
    pub(crate) async fn fill(&mut self, buffer: &mut BytesMut) -> io::Result<bool> {
        buffer.reserve(self.size);
        let room = buffer.capacity() - buffer.len();
        let count = self.io.read_buf(buffer).await?;
        if count == room {
            self.size = (self.size * 2).min(READ_MOST);
        }
        self.clock.touch();
        Ok(count > 0)
    }
}

/// The bytes from a client, for all transports.
#[derive(Debug)]
pub(crate) enum Source {
    Plain(FrameReader, BytesMut),
    /// In binary messages; the second field has the bytes that are not yet decoded.
    Tunnel {
        wire: FrameReader,
        outer: BytesMut,
        inner: BytesMut,
        decoder: ws::Decoder,
        writer: Arc<FrameWriter>,
    },
}

impl Source {
    pub(crate) fn new(wire: FrameReader, begun: BytesMut, writer: &Arc<FrameWriter>) -> Self {
        if writer.is_tunnel() {
            let (decoder, writer) = (ws::Decoder::of_client(), writer.clone());
            Self::Tunnel { wire, outer: begun, inner: BytesMut::new(), decoder, writer }
        } else {
            Self::Plain(wire, begun)
        }
    }

    /// Returns the bytes that were received and not consumed.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        match self {
            Self::Plain(_, buffer) | Self::Tunnel { inner: buffer, .. } => buffer,
        }
    }

    /// Waits for more bytes; returns false at the end.
    pub(crate) async fn fill(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(wire, buffer) => wire.fill(buffer).await,
            Self::Tunnel { wire, outer, inner, decoder, writer } => {
                let before = inner.len();
                loop {
                    while let Some(event) = decoder.next(outer).map_err(io::Error::other)? {
                        match event {
                            ws::Event::Part { bytes, .. } => inner.extend_from_slice(&bytes),
                            ws::Event::Ping(content) => writer.message(ws::PONG, &content),
                            ws::Event::Pong => {}
                            ws::Event::Close => return Ok(false),
                        }
                    }
                    if inner.len() > before {
                        return Ok(true);
                    }
                    if !wire.fill(outer).await? {
                        return Ok(false);
                    }
                }
            }
        }
    }
}
