//! Connections with the credentials of the process at the other end, for its requests.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

use crate::runtime::Peer;

/// A client's connection. Its credentials are those of the connect(2), and its program's name is read once, when the
/// connection is accepted: later the process may be another one.
#[derive(Debug)]
pub(crate) struct PeerStream {
    stream: UnixStream,
    peer: Option<Arc<Peer>>,
}

/// The process at the other end, in the extensions of each request; `None` without credentials.
#[derive(Debug, Clone)]
pub(crate) struct ConnectedPeer(pub(crate) Option<Arc<Peer>>);

impl PeerStream {
    pub(crate) fn new(stream: UnixStream) -> Self {
        let peer = stream.peer_cred().map(|cred| Arc::new(Peer::new(cred.pid().filter(|pid| *pid > 0), cred.uid())));
        Self { stream, peer: peer.ok() }
    }
}

impl Connected for PeerStream {
    type ConnectInfo = ConnectedPeer;

    fn connect_info(&self) -> ConnectedPeer {
        ConnectedPeer(self.peer.clone())
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for PeerStream {
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
