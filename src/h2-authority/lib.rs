//! Accepts clients that send the path of a socket as `:authority`.
//!
//! A connection over a Unix socket has no host name for `:authority`. Most clients send
//! `localhost`, but those built on gRPC's C core (Python, C++, Ruby) and a few others, such as the
//! kubelet as a client of plugins, send the path of the socket, as it is or with `%2F` for each
//! slash. That is not a valid host: h2 resets the stream, and has no setting for it. Servers in Go
//! do not check it.
//!
//! This crate filters the bytes of a connection. In HEADERS frames, it replaces each `%` and `/` of
//! `:authority` by `-`. The length stays the same, in plain text and in Huffman code, so no length
//! in a frame or header block changes, and the dynamic tables of both sides stay in sync. Only the
//! first request of a connection has the host as a literal; for the others the filter only reads
//! each frame header and the first byte of each field.
//!
//! Limits: a value that continues in a CONTINUATION frame is not rewritten, nor one whose name is
//! an index of the dynamic table. Malformed input passes unchanged; h2 handles it.
#![forbid(unsafe_code)]

mod frames;
mod hpack;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use frames::Frames;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// A connection whose `:authority` is rewritten to a valid host name.
#[derive(Debug)]
pub struct AuthorityRewriter<S> {
    stream: S,
    frames: Frames,
}

impl<S> AuthorityRewriter<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, frames: Frames::new() }
    }
}

impl<S: Connected> Connected for AuthorityRewriter<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AuthorityRewriter<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, frames } = &mut *self;
        loop {
            if frames.release(into) {
                return Poll::Ready(Ok(()));
            }
            if let Some(missing) = frames.missing() {
                let mut missing = ReadBuf::new(missing);
                ready!(Pin::new(&mut *stream).poll_read(cx, &mut missing))?;
                let received = missing.filled().len();
                frames.received(received);
                continue;
            }
            let before = into.filled().len();
            ready!(Pin::new(&mut *stream).poll_read(cx, into))?;
            let received = &mut into.filled_mut()[before..];
            let ended = received.is_empty();
            let passed = frames.pass(received);
            into.set_filled(before + passed);
            // Returning no bytes would mean the end.
            if passed > 0 || ended {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AuthorityRewriter<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests;
