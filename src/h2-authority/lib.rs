//! Lets in clients that take the path of a socket for the host they talk to.
//!
//! Over a Unix socket there is no host to name in `:authority`. Most clients say `localhost`, but those built on gRPC's
//! C core (Python, C++, Ruby) and a few others, such as the kubelet where it talks to plugins, give the path of the socket, as
//! it is or with `%2F` for each slash. That is no host: h2 resets the stream, and has no setting for it. Servers written in Go never look.
//!
//! So the bytes of a connection go through here first. In the HEADERS frames among them, each `%` and `/` of
//! `:authority` becomes a `-`. That is as long as before, in plain text and in Huffman's code, so no length in a frame
//! or a header block changes, and the dynamic tables of both sides stay in step. Only the first request of a connection
//! spells the host out; the others cost a look at the head of each frame and at the first byte of each field.
//!
//! Limits: a value that goes on in a CONTINUATION frame is not mended, nor is one whose name is given by its place in
//! the dynamic table. What is malformed passes as it is, for h2 to judge.
#![forbid(unsafe_code)]

mod frames;
mod hpack;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use frames::Frames;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// A connection on which `:authority` can be the name of a host.
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
                let came = missing.filled().len();
                frames.came(came);
                continue;
            }
            let before = into.filled().len();
            ready!(Pin::new(&mut *stream).poll_read(cx, into))?;
            let came = &mut into.filled_mut()[before..];
            let ended = came.is_empty();
            let passed = frames.pass(came);
            into.set_filled(before + passed);
            // Nothing at all would mean the end.
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
